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
        where: Where the document is from, such as "FILE:LINE", for messages and reports.
        is_split: Whether each line of the text is one sentence. If so, lines are not split into
            sentences.
        source: The name of the document's `Source`, if your own Beam pipeline makes the document.
            It is empty for a document of a file, which has the source of its file.

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
    """A document that was left out of a dataset, kept as an example for people to look at.

    Examples are not covered by the hashes of a dataset.

    Attributes:
        reason: Why the document was left out. Such documents are counted under "dropped_" followed
            by this name.
        where: Where the document is in the input, such as "FILE:LINE".
        text: The beginning of the document, or all of it.
    """

    reason: str
    where: str
    text: str


def add_example(
    examples: list[DroppedDocument], reason: str, where: str, text: str, keeps_all: bool = False
) -> None:
    """Appends a dropped document to a list of examples, unless it has enough of the same reason.

    Args:
        examples: The list, which is changed.
        reason: Why the document was dropped, as a counter's name without "dropped_".
        where: Where the document is in the input, such as "FILE:LINE".
        text: The text of the document. Only its beginning is kept.
        keeps_all: If True, the document is appended in any case, with its whole text.
    """
    if keeps_all:
        examples.append(DroppedDocument(reason, where, text))
    elif sum(example.reason == reason for example in examples) < EXAMPLES_PER_REASON:
        examples.append(DroppedDocument(reason, _shorten(where), _shorten(text)))


def _shorten(text: str) -> str:
    """Returns the beginning of a text, in a form that can be written as UTF-8.

    A string of JSON may hold half of a surrogate pair, which UTF-8 cannot express. It becomes a
    question mark.
    """
    return text[:_EXAMPLE_CHARACTERS].encode(errors="replace").decode()
