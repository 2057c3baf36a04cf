"""Finds the language of a document by py3langid's model.

The library multiplies counts of byte n-grams with its table in 32-bit floats. Their sum depends on
the processor and the number of threads. Here the sum is of whole numbers, so it is equal on every
machine.
"""

import importlib.metadata
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

NUM_PLACES = 4
"""Number of places of a long text that are looked at."""
PLACE_CHARACTERS = 250
"""Number of characters that are looked at in each place."""
LIBRARY = "py3langid"
_COUNT_SCALE = 2**16
_TABLE_SCALE = 2**20


def describe_method() -> str:
    """Describes in words how the language of a document is found.

    The words name the library, its version and the excerpts (`sample_text`). The hash of a
    dataset's settings covers them, so another method gives another hash.
    """
    version = importlib.metadata.version(LIBRARY)
    return f"{LIBRARY} {version}, {NUM_PLACES} places of {PLACE_CHARACTERS} characters"


def sample_text(text: str) -> str:
    """Returns the part of a text by which its language is identified.

    It consists of 4 excerpts of 250 characters, spread evenly over the text.

    A text of at most 1,000 characters is returned as a whole.
    """
    if len(text) <= NUM_PLACES * PLACE_CHARACTERS:
        return text
    last = len(text) - PLACE_CHARACTERS
    starts = (last * place // (NUM_PLACES - 1) for place in range(NUM_PLACES))
    return "\n".join(text[start : start + PLACE_CHARACTERS] for start in starts)


def language_shares(text: str) -> Mapping[str, float]:
    """Returns the probability of every language that the model knows, by its ISO 639-1 code."""
    return dict(_identifier().rank(sample_text(text)))


def check_languages(codes: Sequence[str]) -> None:
    """Refuses codes of languages that the model does not know.

    Raises:
        ValueError: Some codes are not known. The message lists them, and all known ones.
    """
    known = sorted(set(_identifier().labels))
    unknown = ", ".join(code for code in codes if code not in known)
    if unknown:
        raise ValueError(f"languages: {unknown} not known; {LIBRARY} knows {', '.join(known)}")


@cache
def _identifier() -> Any:
    """Returns the language identifier of py3langid, with scores computed from whole numbers.

    The library's own scores are sums of floats. Sums of whole numbers are exact, so they are the
    same on every machine.

    Loading its model takes 0.8 s and 130 MB, so it is done once per process.
    """
    import py3langid.langid as langid

    class Identifier(langid.LanguageIdentifier):  # type: ignore[misc]
        """The language identifier of py3langid, with scores computed from whole numbers."""

        __slots__ = ()

        def _sparse_score(
            self, visits: Mapping[int, int], table: npt.NDArray[Any]
        ) -> npt.NDArray[np.float64]:
            """Replaces the library's method, which sums in floats.

            Args:
                visits: The count of each feature, by its row in the table.
                table: [features, languages] the model's weights.

            Returns:
                [languages] the logarithms of the probabilities, up to a common constant.
            """
            return np.asarray(_score(visits, table) + self.nb_pc, np.float64)

    return Identifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


def _score(visits: Mapping[int, int], table: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Returns for each language the sum of its weights: [languages].

    The weight of a feature is multiplied by log(1 + count). The sum is computed in fixed point.

    Args:
        visits: The count of each feature, by its row in the table.
        table: [features, languages] the model's weights.
    """
    rows = np.fromiter(visits.keys(), np.int64, len(visits))
    counts = np.fromiter(visits.values(), np.float64, len(visits))
    weights = np.rint(np.log1p(counts) * _COUNT_SCALE).astype(np.int64)
    fixed = np.rint(table[rows].astype(np.float64) * _TABLE_SCALE).astype(np.int64)
    return np.asarray((weights @ fixed) / float(_COUNT_SCALE * _TABLE_SCALE), np.float64)
