"""A named source of a corpus, as settings give it; it imports no reader, so that help is there at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

LAYOUTS = {
    "text": "plain_text:TEXT",
    "lines": "plain_text:LINES",
    "text-blank-lines": "plain_text:TEXT_BLANK_LINES",
    "sentence-lines": "plain_text:SENTENCE_LINES",
    "parquet": "parquet:PARQUET",
    "arrow": "arrow:ARROW",
    "csv": "text_files:CSV",
    "warc": "warc:WARC",
    "mediawiki": "mediawiki:MEDIAWIKI",
    "cirrus": "jsonl:CIRRUS",
    "jsonl": "jsonl:JSONL",
    "wikiextractor": "wikiextractor:WIKIEXTRACTOR",
}
"""The `Format` of each layout, by its module here; "auto" is the first that detects a file, or text."""
if TYPE_CHECKING:
    TextFormat = str
else:
    TextFormat = Literal[("auto", *LAYOUTS)]
Wrapping = Literal["auto", "none", "blank-lines", "hard"]

MAX_SOURCES = 255
MAX_WEIGHT = 100
UNIT = 1_000_000
"""Weights are counted in millionths, so that every sum of them is exact."""


@dataclass(frozen=True)
class Source:
    """Text of one origin, language and licence.

    Attributes:
        name: The name that reports show. No two sources have the same.
        input: Files, folders or globs of text, at any fsspec URL.
        weight: How often a pass uses each document of the source: 2 twice, 0.5 in every second
            pass.
        language: The code of the text's language, by which sentences are split.
        licence: The licence of the text, such as CC-BY-SA-4.0. It is kept for people and decides
            nothing.
        format: The layout of the input. By default each file's extension and first bytes decide.
        text_field: The field of a JSONL object, or the column of a Parquet file, that holds the
            text.
        wrapping: Whether lines of plain text are wrapped: in none a line is a paragraph, in
            blank-lines a blank line ends one, in hard a short line does. With auto each document's
            lines decide.
    """

    name: str
    input: list[str]
    weight: float = 1
    language: str = "en"
    licence: str = ""
    format: TextFormat = "auto"
    text_field: str = "text"
    wrapping: Wrapping = "auto"

    @property
    def millionths(self) -> int:
        """The weight in millionths, exactly."""
        return int(Decimal(str(self.weight)) * UNIT)

    def reading(self) -> dict[str, Any]:
        """What decides the tokens of its documents, the name aside."""
        names = ("language", "format", "text_field", "wrapping")
        return {name: getattr(self, name) for name in names}


def check_sources(sources: Sequence[Source]) -> None:
    """Raises ValueError: too many, one without a name or input, two of one name, or a weight out of range."""
    if len(sources) > MAX_SOURCES:
        raise ValueError(
            f"sources: found {len(sources)}, at most {MAX_SOURCES} can be told apart; join some of them"
        )
    names = [source.name for source in sources]
    for number, source in enumerate(sources):
        where = f"sources[{number}] ({source.name!r})"
        if not source.name.strip():
            raise ValueError(f"{where}: has no name; give it one, which reports and `inspect` show")
        if source.name in names[:number]:
            raise ValueError(
                f"{where}: sources[{names.index(source.name)}] has that name too; give each its own"
            )
        if not source.input:
            raise ValueError(
                f"{where}: input is empty; name files, folders or globs, or leave the source out"
            )
        if not 0 < source.weight <= MAX_WEIGHT:
            raise ValueError(
                f"{where}: weight is {source.weight}, expected more than 0 and at most {MAX_WEIGHT}; leave a source"
                " out that shall not be used"
            )
        if Decimal(str(source.weight)) * UNIT % 1:
            raise ValueError(
                f"{where}: weight is {source.weight}, expected at most 6 decimals, such as 0.333333"
            )
