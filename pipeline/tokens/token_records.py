"""Writes and reads records of finished document lists: JSON files of what was counted and dropped.

The name of a record says which list of which part is finished. A build that was interrupted goes on
with the parts that lack records.
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
    """Returns the record names of the parts that are complete, by the part's key.

    A part is complete if its last list of documents has a record, and all lists before it have one.

    Args:
        file_names: Names of the files in the folder of records.
        parts: All parts of the input.
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
    """Returns the record names of all parts; checks that the job has finished every part.

    Args:
        file_names: Names of the files in the folder of records.
        parts: All parts of the input.
        where: The folder, for messages.

    Raises:
        ValueError: A part is not complete there, although the job ended without an error.
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
    """Returns the beginning of a record's name, with which all files about its list begin.

    Args:
        record: The name of the record of a list of documents.
    """
    return record.removesuffix(".json").removesuffix("-last")


def read_records(folder: Folder, records: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the content of records, in the order of their names.

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
    """Returns the seals of the words that a list counted, by the bucket of the words.

    Raises:
        ValueError: The record is damaged.
    """
    with expected_fields(where, _REMEDY):
        return {int(bucket): WordSeal(*seal) for bucket, seal in record[_WORDS].items()}


def count_by_source(records: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, int]]:
    """Sums the counters of all records, by the source's number."""
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
    """Returns a few dropped documents of each reason, the first ones of the records.

    Each is a dict with the keys of `DroppedDocument`: reason, where and text.
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
    """Returns the record of a finished list: its counters, source, dropped examples, and notes.

    Args:
        documents: The list.
        words: The seals of its counted words by bucket, if its words were counted.
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
