"""Input files of any layout and place to documents: found, cut into parts, read as a stream.

`parts` says which bytes a task reads and `read` reads them: `files` gives blocks, `lines` lines of
UTF-8, one module a layout records of them, and `formats` puts these together. Open to the trainer
are `parts.find_inputs` and `text_files`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """One document of a corpus, such as an article or a book.

    Attributes:
        text: The text, with a line end after each paragraph.
        where: The document's place for messages, such as "FILE:LINE".
        is_split: Whether each line of the text is one sentence, so that it is not split further.
        source: The name of a `Source`. Only documents of your own Beam pipeline have one; those of
            files belong to the source of their file.

    Examples:
        ```python
        from pipeline import Document

        document = Document("A first sentence. A second one.", "news.jsonl:17", source="news")
        ```
    """

    text: str
    where: str = ""
    is_split: bool = False
    source: str = ""


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
