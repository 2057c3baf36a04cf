"""Records of finished lists of documents: small JSON files of what was counted and dropped."""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.documents import EXAMPLES_PER_REASON, DroppedDocument, add_example
from pipeline.documents.parts import Part
from pipeline.shards.records import json_bytes
from pipeline.storage.folder import Folder
from pipeline.storage.secret_values import hide_in
from pipeline.tokens.document_lists import DocumentList
from pipeline.tokens.provenance import writable

# The keys of a record that are no counts.
_EXAMPLES, _SOURCE, _WITHOUT_TEXT = _NO_COUNTS = "examples", "source", "without_text"
_EXAMPLES_OF_ALL = 4 * EXAMPLES_PER_REASON
_RECORD_NAME = re.compile(r"(?P<part>[0-9a-f]+)-(?P<number>\d{5})(?P<last>-last)?\.json")


def finished_parts(file_names: Iterable[str], parts: Sequence[Part]) -> dict[str, list[str]]:
    """Record names of every part that is complete, by the part's key."""
    records: dict[str, dict[int, re.Match[str]]] = {}
    for match in filter(None, map(_RECORD_NAME.fullmatch, file_names)):
        records.setdefault(match["part"], {})[int(match["number"])] = match
    finished: dict[str, list[str]] = {}
    for part in parts:
        found = records.get(part.key, {})
        last = next((number for number, match in found.items() if match["last"]), None)
        if last is not None and all(number in found for number in range(last)):
            finished[part.key] = [found[number][0] for number in range(last + 1)]
    return finished


def record_stem(record: str) -> str:
    """The name that a record's files share."""
    return record.removesuffix(".json").removesuffix("-last")


def read_records(folder: Folder, records: Sequence[str]) -> list[dict[str, Any]]:
    """What the records say, in the order of their names."""
    return [json.loads(data) for _, data in sorted(folder.read_many(records).items())]


def count_by_source(records: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, int]]:
    """Sums the counters of all records, by the source's number."""
    totals: dict[int, Counter[str]] = {}
    for record in records:
        counters = {name: count for name, count in record.items() if name not in _NO_COUNTS}
        totals.setdefault(record.get(_SOURCE, 0), Counter()).update(counters)
    return {source: dict(sorted(found.items())) for source, found in sorted(totals.items())}


def sum_counters(by_source: Mapping[int, Mapping[str, int]]) -> dict[str, int]:
    """The counters of all sources together."""
    names = sorted({name for counters in by_source.values() for name in counters})
    return {name: sum(each.get(name, 0) for each in by_source.values()) for name in names}


def choose_examples(records: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """A few dropped documents of each reason, the first of the records: reason, where and text."""
    kept: dict[str, list[dict[str, str]]] = {}
    for record in records:
        for example in record.get(_EXAMPLES, ()):
            kept.setdefault(example["reason"], []).append(example)
    return [each for _, own in sorted(kept.items()) for each in own[:_EXAMPLES_OF_ALL]]


def find_files_without_text(
    records: Iterable[Mapping[str, Any]], parts: Sequence[Part]
) -> list[tuple[str, int]]:
    """The input files without text in any range, by URL, each with its source's number."""
    silent = Counter(url for record in records for url in record.get(_WITHOUT_TEXT, ()))
    ranges = Counter((writable(each.url), part.source) for part in parts for each in part.ranges)
    return sorted(file for file, number in ranges.items() if silent[file[0]] == number)


def format_record(documents: DocumentList[Any]) -> bytes:
    """What is kept of a finished list: counters, source, examples of drops, and silent ranges."""
    examples: list[DroppedDocument] = []
    for each in documents.dropped:
        add_example(examples, each.reason, each.where, each.text)
    told: dict[str, list[Any]] = {
        _EXAMPLES: [hide_in(dataclasses.asdict(each)) for each in examples],
        _WITHOUT_TEXT: list(map(writable, documents.without_text)),
    }
    counted = dict(documents.counters) | {_SOURCE: documents.source}
    return json_bytes(counted | {key: value for key, value in told.items() if value})
