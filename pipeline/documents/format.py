"""What a layout of text is to the rest: how to know, read and parse it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.documents.files import FileRange, StorageOptions
from pipeline.documents.records import Line, Record


class Beginning(NamedTuple):
    """How a file begins: its suffix without a compression's, its first bytes, and these as stripped UTF-8."""

    suffix: str
    head: bytes
    text: bytes


@dataclass(frozen=True)
class Format:
    """A layout of text. One that neither splits nor reads makes every file one document.

    Attributes:
        parse: The text of a record: of its decoded bytes, the record, its range and the field that
            holds text.
        detect: Whether a file begins like this; without it, only users choose the format.
        split: Lines to the records that belong to a range; also reads members of archives.
        read: The records that belong to a range, of a layout that is not made of lines.
        is_text: Whether files are text, which may be UTF-16.
        may_be_cut: Whether ranges of a file can be read on their own where it is not compressed.
        cut_suffix: A compression of which ranges can be read on their own too.
        has_sentence_lines: Whether every line is a sentence.
    """

    parse: Callable[[Any, Record, FileRange, str], str]
    detect: Callable[[Beginning], bool] | None = None
    split: Callable[[Iterable[Line], FileRange], Iterator[Record]] | None = None
    read: Callable[[FileRange, str, StorageOptions], Iterator[Record]] | None = None
    is_text: bool = True
    may_be_cut: bool = True
    cut_suffix: str = ""
    has_sentence_lines: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether a file is one document."""
        return self.split is None and self.read is None
