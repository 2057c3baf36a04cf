"""Writes and reads records, small JSON files that say which lists of documents are finished.

The tokens job reads each part of the input as one or more lists of documents (`DocumentList`). It
writes a token part for each list, and then a record with the counters of the list and some notes.
The name of a record, PART-NUMBER.json or PART-NUMBER-last.json, has the key of the part and the
number of the list in it. If a build was interrupted, the next one reads only the parts of which a
record is missing.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.documents import EXAMPLES_PER_REASON, DroppedDocument, add_example
from pipeline.documents.parts import Part
from pipeline.shards.records import json_bytes
from pipeline.storage.folder import Folder
from pipeline.storage.json_files import expected_fields, parse_object
from pipeline.storage.secret_values import hide, hide_in
from pipeline.tokens.document_lists import DocumentList
from pipeline.tokens.provenance import writable
from pipeline.tokens.word_counts import WordSeal

# All other keys of a record are counters.
_EXAMPLES = "examples"
_SOURCE = "source"
_WITHOUT_TEXT = "without_text"
_WORDS = "words"
_UNKNOWN_WORDS = "unknown_words"
_NO_COUNTS = (_EXAMPLES, _SOURCE, _WITHOUT_TEXT, _WORDS, _UNKNOWN_WORDS)
_NUM_UNKNOWN_WORDS = 20
_LOST = "the store or another program removed them: run the same command again"
_REMEDY = "delete this file, tokens.json beside it if it is there, and run the same command again"
_EXAMPLES_OF_ALL = 4 * EXAMPLES_PER_REASON
_RECORD_NAME = re.compile(r"(?P<part>[0-9a-f]+)-(?P<number>\d{5})(?P<last>-last)?\.json")


def finished_parts(file_names: Iterable[str], parts: Sequence[Part]) -> dict[str, list[str]]:
    """Finds the parts of the input that are complete: all of their lists have records.

    Args:
        file_names: Names of the files in the folder of records.
        parts: All parts of the input.

    Returns:
        For each complete part, by its key, the names of its records in the order of the lists.
    """
    records: dict[str, dict[int, re.Match[str]]] = {}
    for match in filter(None, map(_RECORD_NAME.fullmatch, file_names)):
        records.setdefault(match["part"], {})[int(match["number"])] = match
    finished: dict[str, list[str]] = {}
    for part in parts:
        lists = records.get(part.key, {})
        last = next((number for number, match in lists.items() if match["last"]), None)
        if last is not None and all(number in lists for number in range(last)):
            finished[part.key] = [lists[number][0] for number in range(last + 1)]
    return finished


def require_finished(file_names: Iterable[str], parts: Sequence[Part], where: str) -> list[str]:
    """Returns the names of the records of all parts, after a check that every part is complete.

    Args:
        file_names: Names of the files in the folder of records.
        parts: All parts of the input.
        where: The folder, for messages.

    Raises:
        ValueError: A part is not complete (`finished_parts`).
    """
    finished = finished_parts(file_names, parts)
    lost = [part for part in parts if part.key not in finished]
    if lost:
        raise ValueError(
            f"{where}: the job ended without an error, but {len(lost)} of {len(parts)} parts of"
            f" the input are not complete there, such as that of {hide(lost[0].ranges[0].url)}:"
            " the runner lost some, the store does not list what was written, or another build"
            " works on the same output; run the same command again"
        )
    return [record for part in parts for record in finished[part.key]]


def record_stem(record: str) -> str:
    """Returns a record's name without its ending, PART-NUMBER.

    The names of all files of the list's token part begin with it.

    Args:
        record: The name of the record.
    """
    return record.removesuffix(".json").removesuffix("-last")


def read_records(folder: Folder, records: Sequence[str]) -> list[dict[str, Any]]:
    """Reads records.

    Args:
        folder: The folder of records.
        records: The names of the records, in any order.

    Returns:
        The contents of the records, sorted by the names of the records.

    Raises:
        FileNotFoundError: A record is missing.
        ValueError: A record is damaged.
    """
    try:
        contents = sorted(folder.read_many(records).items())
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}; {_LOST}") from error
    return [parse_object(data, folder.locate(name), _REMEDY) for name, data in contents]


def read_word_seals(record: Mapping[str, Any], where: str) -> dict[int, WordSeal]:
    """Reads the checksums of the words that were counted in a list, by the words' bucket.

    Args:
        record: The content of the list's record.
        where: The URL of the record, for messages.

    Raises:
        ValueError: The record is damaged.
    """
    with expected_fields(where, _REMEDY):
        return {int(bucket): WordSeal(*seal) for bucket, seal in record[_WORDS].items()}


def count_by_source(records: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, int]]:
    """Returns for each source, by its number, the sums of the counters in its records."""
    totals: dict[int, Counter[str]] = {}
    for record in records:
        counters = {name: count for name, count in record.items() if name not in _NO_COUNTS}
        totals.setdefault(record.get(_SOURCE, 0), Counter()).update(counters)
    return {source: dict(sorted(counters.items())) for source, counters in sorted(totals.items())}


def sum_counters(by_source: Mapping[int, Mapping[str, int]]) -> dict[str, int]:
    """Returns the counters of all sources together, sorted by name."""
    totals: Counter[str] = Counter()
    for counters in by_source.values():
        totals.update(counters)
    return dict(sorted(totals.items()))


def choose_examples(records: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Chooses a few examples of the dropped documents of each reason: the first in the records.

    Returns:
        A dict for each example, with the keys reason, where and text (`DroppedDocument`). The
        examples are sorted by reason.
    """
    by_reason: dict[str, list[dict[str, str]]] = {}
    for record in records:
        for example in record.get(_EXAMPLES, ()):
            by_reason.setdefault(example["reason"], []).append(example)

    chosen: list[dict[str, str]] = []
    for _, examples in sorted(by_reason.items()):
        chosen += examples[:_EXAMPLES_OF_ALL]
    return chosen


def find_unknown_words(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns some words that were encoded with an [UNK], the commonest in the records first."""
    words: Counter[str] = Counter()
    for record in records:
        words.update(record.get(_UNKNOWN_WORDS, {}))
    return sorted(words, key=lambda word: (-words[word], word))[:_NUM_UNKNOWN_WORDS]


def find_files_without_text(
    records: Iterable[Mapping[str, Any]], parts: Sequence[Part]
) -> list[tuple[str, int]]:
    """Returns the input files that have no text in any of their ranges.

    Args:
        records: The records of all lists.
        parts: All parts of the input.

    Returns:
        URL and source number of each such file, sorted.
    """
    ranges_without_text: Counter[str] = Counter()
    for record in records:
        ranges_without_text.update(record.get(_WITHOUT_TEXT, ()))
    ranges: Counter[tuple[str, int]] = Counter()
    for part in parts:
        ranges.update((writable(each.url), part.source) for each in part.ranges)
    return sorted(
        (url, source)
        for (url, source), number in ranges.items()
        if ranges_without_text[url] == number
    )


def format_record(
    documents: DocumentList[Any], words: Mapping[int, WordSeal] | None = None
) -> bytes:
    """Returns the content of the record of a finished list.

    The record has the list's counters, its source, examples of dropped documents, URLs of ranges
    without text, and some unknown words. Secrets in places and texts are hidden.

    Args:
        documents: The list.
        words: The checksums of the list's words by bucket (`WordSeal`); None if the words were not
            counted.
    """
    examples: list[DroppedDocument] = []
    for dropped in documents.dropped:
        add_example(examples, dropped.reason, dropped.where, dropped.text)
    notes: dict[str, Any] = {
        _EXAMPLES: [hide_in(dataclasses.asdict(example)) for example in examples],
        _WITHOUT_TEXT: list(map(writable, documents.without_text)),
        _UNKNOWN_WORDS: dict(documents.unknown_words),
    }
    counted: dict[str, Any] = dict(documents.counters) | {_SOURCE: documents.source}
    if words is not None:
        counted[_WORDS] = {str(bucket): dataclasses.astuple(seal) for bucket, seal in words.items()}
    return json_bytes(counted | {key: value for key, value in notes.items() if value})
