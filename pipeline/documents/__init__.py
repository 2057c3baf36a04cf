"""Reads documents from files of many formats, at any fsspec URL.

The modules are layers:

1. `listing` and `parts` find the input files and cut them into parts, one for each task.
2. `files` reads the bytes of a part as blocks, and `lines` splits blocks into lines of UTF-8.
3. One module for each format (`jsonl`, `mediawiki`, ...) splits lines or blocks into records, and
   extracts the text of a record. `source.LAYOUTS` lists the formats.
4. `ranges` reads the records of a byte range, and `read` reads the documents of a part.

The trainer uses only `parts.find_inputs` and `text_files`.
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
    """An example of a document that was left out, for people to look at. It enters no hash.

    Attributes:
        reason: The name of the counter that counts such documents, without "dropped_".
        where: The document's place in the input.
        text: The beginning of the document, or all of it.
    """

    reason: str
    where: str
    text: str


def add_example(
    examples: list[DroppedDocument], reason: str, where: str, text: str, keeps_all: bool = False
) -> None:
    """Appends an example to the list, unless the list has enough examples of the same reason.

    Args:
        examples: The list, which is changed.
        reason: Why the document was dropped.
        where: The document's place in the input.
        text: The document, of which only the beginning is kept.
        keeps_all: Whether every document is appended, with its whole text.
    """
    if keeps_all:
        examples.append(DroppedDocument(reason, where, text))
    elif sum(example.reason == reason for example in examples) < EXAMPLES_PER_REASON:
        examples.append(DroppedDocument(reason, _shorten(where), _shorten(text)))


def _shorten(text: str) -> str:
    """Returns the beginning of a text, with lone surrogates as question marks.

    A JSON string can hold half of a surrogate pair, but no file in UTF-8 can.
    """
    return text[:_EXAMPLE_CHARACTERS].encode(errors="replace").decode()
