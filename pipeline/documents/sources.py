"""Named sources of a corpus, and how often each document of a source is used in a pass.

A weight w uses a document floor(u + w (p + 1)) - floor(u + w p) times in pass p, u in [0, 1) coming
from its id: over P passes w P times, up to one, spread evenly over passes and documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import gcd
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from pipeline.documents.formats import FORMATS
from pipeline.seeds import seed_for

if TYPE_CHECKING:
    TextFormat = str
else:
    TextFormat = Literal["auto", *FORMATS]
Wrapping = Literal["auto", "none", "blank-lines", "hard"]

MAX_SOURCES = 255
MAX_WEIGHT = 100
UNIT = 1_000_000
"""Weights are counted in millionths, so that every sum of them is exact."""

_PURPOSE = "uses"
_START_BITS = 32


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
        return {
            "language": self.language,
            "format": self.format,
            "text_field": self.text_field,
            "wrapping": self.wrapping,
        }


def check_sources(sources: Sequence[Source]) -> None:
    """Checks what the sources of a configuration say of themselves.

    Raises:
        ValueError: Too many, one without a name or input, two of one name, or a weight out of
            range.
    """
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


def count_factors(weights: Sequence[int]) -> list[int]:
    """What each source's word counts are multiplied by: the smallest whole numbers in the ratio of the weights.

    Weights are taken to the thousandth, at least one, so that sums over any sample are exact where
    the learner adds.
    """
    thousandths = [max(1, (weight * 1000 + UNIT // 2) // UNIT) for weight in weights]
    return [each // gcd(*thousandths) for each in thousandths]


def choose_uses(
    ids: Sequence[bytes],
    sources: npt.NDArray[np.uint8],
    weights: Sequence[int],
    seed: int,
    pass_index: int,
) -> tuple[list[int], list[int]]:
    """Which documents a pass uses, in their order, each as often as its source's weight says.

    Args:
        ids: [D] of the documents.
        sources: [D] number of each one's source.
        weights: In millionths, by the source's number.
        seed: The seed of the build.
        pass_index: Counted from 0.

    Returns:
        Rows of the documents, one for each use, and how many uses of the same document came before
        it.
    """
    uses = np.array(
        [
            count_uses(weights[s], pass_index, seed, i)
            for i, s in zip(ids, sources.tolist(), strict=True)
        ],
        np.int64,
    )
    rows = np.repeat(np.arange(len(ids)), uses)
    before = np.arange(len(rows)) - np.repeat(np.cumsum(uses) - uses, uses)
    return rows.tolist(), before.tolist()


def apply_weights(
    weights: Sequence[int], documents: Sequence[int], cleaned_bytes: Sequence[int]
) -> tuple[int, int]:
    """What buckets are planned from: text that a pass uses, each document's at least once, and documents it uses.

    Args:
        weights: In millionths, by the source's number; none where every document is used once.
        documents: Distinct ones of each source.
        cleaned_bytes: Their text.
    """
    weights = weights or [UNIT] * len(documents)
    used_bytes = sum(
        max(weight, UNIT) * size for weight, size in zip(weights, cleaned_bytes, strict=True)
    )
    used_documents = sum(
        min(weight, UNIT) * number for weight, number in zip(weights, documents, strict=True)
    )
    return used_bytes // UNIT, used_documents // UNIT


def count_uses(weight: int, pass_index: int, seed: int, document: bytes) -> int:
    """How often a document is used in a pass, by its source's weight in millionths."""
    whole, rest = divmod(weight, UNIT)
    if not rest:
        return whole
    start = (seed_for(seed, _PURPOSE, 0, document.hex()) & ((1 << _START_BITS) - 1)) * UNIT
    end, begin = (start + (weight * each << _START_BITS) for each in (pass_index + 1, pass_index))
    return end // (UNIT << _START_BITS) - begin // (UNIT << _START_BITS)
