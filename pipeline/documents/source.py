"""The settings of one source of a corpus, and the names of all input formats.

No reader is imported here, so that `--help` is fast.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

LAYOUTS = {
    "text": "plain_text:TEXT",
    "lines": "plain_text:LINES",
    "text-blank-lines": "plain_text:TEXT_BLANK_LINES",
    "sentence-lines": "plain_text:SENTENCE_LINES",
    "parquet": "tables:PARQUET",
    "arrow": "tables:ARROW",
    "csv": "delimited:CSV",
    "warc": "warc:WARC",
    "mediawiki": "mediawiki:MEDIAWIKI",
    "cirrus": "jsonl:CIRRUS",
    "jsonl": "jsonl:JSONL",
    "wikiextractor": "plain_text:WIKIEXTRACTOR",
    "html": "html_files:HTML",
}
"""Where the `Format` of each name is: "module:name" in `pipeline.documents`.

The format "auto" tries them in this order and takes the first that detects the file, otherwise
"text".
"""
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
    """A named source of a corpus: documents of one origin, language and licence.

    A source of files has an `input`. A source of documents that your own Beam pipeline gives to
    `WriteTokens` has none: `Source("books", [], weight=2)`.

    Attributes:
        name: The name that reports show. No two sources have the same.
        input: Files, folders or globs of text, at any fsspec URL.
        weight: How often a pass uses each document: 2 twice, 0.5 in every second pass.
        language: The code of the text's language, by which sentences are split.
        licence: The licence of the text, such as CC-BY-SA-4.0. It is kept for people and decides
            nothing.
        format: The layout of the input. By default each file's extension and first bytes decide.
        text_field: The field of a JSONL object, or the column of a Parquet file, that holds the
            text.
        wrapping: What ends a paragraph of plain text: every line end (none), a blank line
            (blank-lines), or a short line (hard). With auto the lines of each document decide.
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
        return int(_exact(self.weight))

    def reading(self) -> dict[str, Any]:
        """Returns the settings that decide how the source's files become tokens, by their names."""
        names = ("language", "format", "text_field", "wrapping")
        return {name: getattr(self, name) for name in names}


def _exact(weight: float) -> Decimal:
    """Returns a weight in millionths, exactly as it is written in decimals.

    0.1 gives 100000, though a float cannot represent 0.1 exactly.
    """
    return Decimal(str(weight)) * UNIT


def check_sources(sources: Sequence[Source]) -> None:
    """Checks the settings of the sources of a corpus.

    Raises:
        ValueError: There are too many sources, or a source has no name or input, the name of
            another source, or a weight that cannot be used.
    """
    if len(sources) > MAX_SOURCES:
        most = f"at most {MAX_SOURCES} can be told apart"
        raise ValueError(f"sources: found {len(sources)}, {most}; join some of them")
    names = [source.name for source in sources]
    for number, (name, source) in enumerate(zip(names, sources, strict=True)):
        weight = f"weight is {source.weight}, expected"
        is_finer = abs(source.weight) <= MAX_WEIGHT and _exact(source.weight) % 1
        problems = {
            "has no name; give it one, which reports and `inspect` show": not name.strip(),
            f"sources[{names.index(name)}] has that name too; give each its own": name
            in names[:number],
            "input is empty; name files, folders or globs, or leave it out": not source.input,
            f"{weight} more than 0 and at most {MAX_WEIGHT}; leave a source out that shall not be"
            " used": not 0 < source.weight <= MAX_WEIGHT,
            f"{weight} at most 6 decimals, such as 0.333333": is_finer,
        }
        for problem, has_problem in problems.items():
            if has_problem:
                raise ValueError(f"sources[{number}] ({name!r}): {problem}")
