"""Input files of any layout and place to documents: found, cut into parts, read as a stream.

`parts` says which bytes a task reads and `read` reads them: `files` gives blocks, `lines` lines of
UTF-8, one module a layout records of them, and `formats` puts these together. Open to the trainer
are `parts.find_inputs` and `text_files`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """One article or book, and its place for messages ("FILE:LINE")."""

    text: str
    where: str = ""
    is_split: bool = False
    """Whether each line is a sentence."""
    source: str = ""
    """The name of its source, where the documents are a user's own."""


EXAMPLES_PER_REASON = 3
_EXAMPLE_CHARACTERS = 200


@dataclass(frozen=True)
class DroppedDocument:
    """An example of what was left out, for people to look at; it enters no hash."""

    reason: str
    """The counter's name without "dropped_"."""
    where: str
    text: str
    """How the document begins."""


def add_example(
    examples: list[DroppedDocument], reason: str, where: str, text: str, keeps_all: bool = False
) -> None:
    """Appends an example unless there are enough of its reason, or all are kept, with all text."""
    if keeps_all:
        examples.append(DroppedDocument(reason, where, text))
    elif sum(each.reason == reason for each in examples) < EXAMPLES_PER_REASON:
        # A lone surrogate, which no file can hold, becomes a question mark.
        begin = (each[:_EXAMPLE_CHARACTERS].encode(errors="replace") for each in (where, text))
        examples.append(DroppedDocument(reason, *map(bytes.decode, begin)))
