"""Input files of any layout and place to documents: found, cut into parts, read as a stream.

`parts` says which bytes a task reads and `read` reads them: `files` gives blocks,
`encoding` and `lines` lines of UTF-8, one module a layout records of them, and `formats` puts these
together.

Open to the trainer, whose tables of labelled text lie in the same kinds of files, are
`parts.find_inputs`, which lists files, and `text_files`: `read_text`, `read_text_lines`,
`read_json_lines` and `read_csv_rows`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """One article or book.

    Attributes:
        text: As it stands in the input; may be empty.
        where: "FILE:LINE", "FILE" or "FILE, byte N" it starts at, for messages only.
        is_split: Whether every line of the text is a sentence.
    """

    text: str
    where: str
    is_split: bool = False


EXAMPLES_PER_REASON = 3
_EXAMPLE_CHARACTERS = 200


@dataclass(frozen=True)
class DroppedDocument:
    """An example of what was left out, for people to look at; it enters no hash.

    Attributes:
        reason: The counter's name without "dropped_".
        where: The document's place in the input, and what was wrong with it where that is known.
        text: How it begins.
    """

    reason: str
    where: str
    text: str


def add_example(examples: list[DroppedDocument], reason: str, where: str, text: str) -> None:
    """Appends an example, unless there are enough of its reason."""
    if sum(each.reason == reason for each in examples) < EXAMPLES_PER_REASON:
        examples.append(DroppedDocument(reason, *(_begin(each) for each in (where, text))))


def _begin(text: str) -> str:
    """The first characters; a lone surrogate, which no file can hold, becomes a question mark."""
    return text[:_EXAMPLE_CHARACTERS].encode(errors="replace").decode()
