"""Reads minimal pairs from JSON lines, as BLiMP publishes them (Warstadt et al. 2020)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.documents.listing import list_matches
from pipeline.documents.text_files import read_json_lines
from pipeline.storage.compression import plain_suffix
from pipeline.storage.folder import Folder
from pipeline.storage.quoting import join_names, quote

SENTENCES = ("sentence_good", "sentence_bad")
EQUAL_PAIR = "both sentences are equal, so the pair counts as wrong"
PHENOMENON = "linguistics_term"
BLIMP_COLUMNS = (PHENOMENON, "UID")
"""The columns of BLiMP's phenomena and of its paradigms."""

# Table 1 of the BLiMP paper has 12 phenomena. Its files give two of the nine paradigms of argument
# structure a 13th name.
_SAME_PHENOMENON = {"s-selection": "argument_structure"}
_SUFFIXES = (".jsonl", ".ndjson")
_CURE = "every pair must have the columns that pairs are grouped by (--group_by of evaluate)"
_MOST_EQUAL = 0.01
"""The share of pairs that may be equal sentences: BLiMP has 7 in all, at most 5 in a paradigm."""


@dataclass(frozen=True)
class Pair:
    """Two sentences: speakers accept the first and do not accept the second.

    Attributes:
        place: Where the pair was read, as "FILE:LINE".
        good: The sentence that speakers accept.
        bad: The sentence that they do not accept.
        groups: The pair's value in each column of `PairSet.columns`.
    """

    place: str
    good: str
    bad: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class PairSet:
    """Minimal pairs of one or several files.

    Attributes:
        columns: The fields of the JSON lines by which pairs are grouped, the coarsest first.
        pairs: The pairs in the order of the files.
    """

    columns: tuple[str, ...]
    pairs: list[Pair]

    @property
    def equal_pairs(self) -> list[Pair]:
        """Returns the pairs whose two sentences are equal.

        Every model gets them wrong, because it gives equal sentences equal scores, and a pair is
        right only if the good sentence has the higher one.
        """
        return [pair for pair in self.pairs if pair.good == pair.bad]


def read_pairs(
    name: str,
    group_by: Sequence[str] = (),
    limit: int = 0,
    storage_options: Mapping[str, Any] | None = None,
) -> PairSet:
    """Reads the minimal pairs of a file, of a folder, or of the files that match a glob.

    A line is a JSON object with the fields sentence_good and sentence_bad. Other fields can be used
    to group pairs.

    Args:
        name: A local path or an fsspec URL; files may be compressed. In a folder, files named
            *.jsonl and *.ndjson are read.
        group_by: Columns to group pairs by, the coarsest first. If it is empty, BLiMP's columns are
            used as far as the pairs have them; then all pairs must have the same ones.
        limit: The most pairs of each group of the finest column, from the first one; 0 takes all.
        storage_options: Options of the filesystem of files at a URL.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A line is no pair or has no value in a column, there is no pair, or in too many
            pairs both sentences are equal. The message names file and line.

    Example:
        ```python
        from trainer import read_pairs

        pair_set = read_pairs("blimp/data", limit=100)
        pair_set.columns          # ("linguistics_term", "UID")
        pair_set.pairs[0].good    # "Who should Derek hug after shocking Richard?"
        ```
    """
    columns = tuple(group_by)
    pairs: list[Pair] = []
    sizes: Counter[tuple[str, ...]] = Counter()
    for number, (place, record) in enumerate(_records(name, storage_options)):
        if not group_by:
            present = tuple(column for column in BLIMP_COLUMNS if column in record)
            columns = columns if number else present
            _refuse_more_columns(place, present, columns)
        pair = _parse_pair(place, record, columns)
        sizes[pair.groups] += 1
        if not limit or sizes[pair.groups] <= limit:
            pairs.append(pair)
    if not pairs:
        expected = f"a JSON object with {' and '.join(SENTENCES)} in each line"
        raise ValueError(f"{name}: holds no pair, expected {expected}")
    pair_set = PairSet(columns, pairs)
    _refuse_equal(pair_set)
    return pair_set


def _refuse_more_columns(place: str, present: Sequence[str], columns: Sequence[str]) -> None:
    """Refuses a pair with a column that the first pair lacks; otherwise nothing would be grouped.

    Args:
        place: The place of the pair.
        present: BLiMP's columns that the pair has.
        columns: BLiMP's columns that the first pair has.

    Raises:
        ValueError: The pair has more of them.
    """
    more = [column for column in present if column not in columns]
    if more:
        raise ValueError(f"{place}: has the column {more[0]}, and the first pair lacks it; {_CURE}")


def _refuse_equal(pair_set: PairSet) -> None:
    """Raises ValueError if in too many pairs both sentences are equal."""
    equal = pair_set.equal_pairs
    if len(equal) > _MOST_EQUAL * len(pair_set.pairs):
        first = equal[0]
        count = f"{len(equal):,} of {len(pair_set.pairs):,} pairs are"
        found = f"both sentences are {quote(first.good)}, expected two that differ"
        raise ValueError(
            f"{first.place}: {found}; {count} of equal sentences, more than {_MOST_EQUAL:.0%}:"
            " mend the file"
        )


def list_pair_files(name: str, options: Mapping[str, Any] | None = None) -> list[str]:
    """Lists the files of pairs that a path, a folder or a glob stands for.

    Args:
        name: As `read_pairs` takes it.
        options: Options of the filesystem of files at a URL.

    Raises:
        FileNotFoundError: There is no such file.
    """
    files = list(list_matches(name, options).sizes)
    folder = Folder(name, options)
    if folder.exists() and not folder.is_file():
        files = [file for file in files if plain_suffix(file) in _SUFFIXES]
    if not files:
        expected = f"a file of pairs, a folder of files named *{' or *'.join(_SUFFIXES)}, or a glob"
        raise FileNotFoundError(f"{name}: no file is there, expected {expected}")
    return files


def _records(
    name: str, options: Mapping[str, Any] | None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the place and the JSON object of every line of the files.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A line is no JSON object.
    """
    for file in list_pair_files(name, options):
        yield from read_json_lines(file, options)


def _parse_pair(place: str, record: Mapping[str, Any], columns: Sequence[str]) -> Pair:
    """Returns the pair in the JSON object of a line.

    Raises:
        ValueError: A sentence or a column is missing or malformed.
    """
    good = _sentence(place, record, SENTENCES[0])
    bad = _sentence(place, record, SENTENCES[1])
    groups = tuple(_group(place, record, column) for column in columns)
    return Pair(place, good, bad, groups)


def _sentence(place: str, record: Mapping[str, Any], name: str) -> str:
    """Returns the sentence in a field of a line, or raises ValueError if there is none."""
    if name not in record:
        expected = f"expected {' and '.join(SENTENCES)}"
        raise ValueError(f"{place}: has no {name}, found {_names(record)}; {expected}")
    sentence = record[name]
    if not isinstance(sentence, str) or not sentence.strip():
        raise ValueError(f"{place}: {name} is {quote(sentence)}, expected a sentence")
    return sentence


def _group(place: str, record: Mapping[str, Any], column: str) -> str:
    """Returns the value of a column to group by.

    Raises:
        ValueError: The column is missing, or its value is neither a text nor a whole number.
    """
    if column not in record:
        raise ValueError(f"{place}: has no column {column}, found {_names(record)}; {_CURE}")
    value = record[column]
    if not isinstance(value, str | int):
        expected = "a name or a whole number"
        raise ValueError(f"{place}: {column} is {quote(value)}, expected {expected}")  # noqa: TRY004
    if column == PHENOMENON:
        return _SAME_PHENOMENON.get(str(value), str(value))
    return str(value)


def _names(record: Mapping[str, Any]) -> str:
    """Returns the names of the fields of a JSON object, for a message."""
    return join_names(record) or "an empty object"
