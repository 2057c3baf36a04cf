"""The tokens job: parts of the input to token parts, as a Beam graph of thin shells over pipeline.document_lists.

    Part | ReadDocuments | CleanDocuments | SplitSentences | EncodeDocuments | WriteTokenParts

Every stage between reading and writing takes and gives a DocumentList, so a transform of one's own fits between any
two. A finished list leaves three files and, last, a small record; running again skips parts whose records are there.
"""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam

from pipeline import worker_guard
from pipeline.document_lists import (
    DocumentList,
    SplitDocument,
    clean_documents,
    encode_documents,
    group_documents,
    split_documents,
)
from pipeline.documents import EXAMPLES_PER_REASON, Document, DroppedDocument
from pipeline.documents.parts import Part
from pipeline.documents.read import read_part
from pipeline.provenance import pack_places
from pipeline.shards.manifest import json_bytes
from pipeline.shards.storage import open_filesystem, write_atomic
from pipeline.token_parts import TokenizedDocument, pack_documents
from tokenizer.encode import Encoder
from tokenizer.vocab import parse_vocab

worker_guard.watch_in_workers()

_EXAMPLES, _SOURCE = "examples", "source"  # the keys of a record that are no counts
_EXAMPLES_OF_ALL = 4 * EXAMPLES_PER_REASON
_RECORD_NAME = re.compile(r"(?P<part>[0-9a-f]+)-(?P<number>\d{5})(?P<last>-last)?\.json")


class ReadDocuments(beam.PTransform):  # type: ignore[misc]
    """Parts to lists of documents as they stand in the input."""

    def __init__(
        self,
        text_fields: Sequence[str],
        on_bad_document: str,
        max_characters: int,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Keeps what a worker needs to read.

        Args:
            text_fields: Field of a JSONL object that holds the text, by the number of the source.
            on_bad_document: stop or skip.
            max_characters: Text of one list.
            storage_options: Of the input's filesystem.
        """
        super().__init__()
        self._arguments = (tuple(text_fields), on_bad_document, max_characters, storage_options)

    def expand(self, parts: beam.PCollection) -> beam.PCollection:
        return parts | beam.FlatMap(read_lists, *self._arguments)


class CleanDocuments(beam.PTransform):  # type: ignore[misc]
    """Cleans texts and drops empty documents."""

    def expand(self, documents: beam.PCollection) -> beam.PCollection:
        return documents | beam.Map(clean_documents)


class SplitSentences(beam.PTransform):  # type: ignore[misc]
    """Splits documents into sentences of a bounded length, by the rules of their source's language (its code)."""

    def __init__(self, languages: Sequence[str]) -> None:
        super().__init__()
        self._languages = tuple(languages)

    def expand(self, documents: beam.PCollection) -> beam.PCollection:
        return documents | beam.Map(split_documents, self._languages)


class EncodeDocuments(beam.PTransform):  # type: ignore[misc]
    """Encodes sentences with the vocabulary whose vocab.txt has these bytes."""

    def __init__(self, vocab: bytes, lower_case: bool) -> None:
        super().__init__()
        self._vocab = vocab
        self._lower_case = lower_case

    def expand(self, documents: beam.PCollection) -> beam.PCollection:
        return documents | beam.ParDo(_Encode(self._vocab, self._lower_case))


class WriteTokenParts(beam.PTransform):  # type: ignore[misc]
    """Writes each list as a token part below a folder or URL and yields the name of its record."""

    def __init__(self, folder: str, storage_options: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._arguments = (folder, storage_options)

    def expand(self, documents: beam.PCollection) -> beam.PCollection:
        return documents | beam.Map(write_token_part, *self._arguments)


class _Encode(beam.DoFn):  # type: ignore[misc]
    def __init__(self, vocab: bytes, lower_case: bool) -> None:
        self._vocab = vocab
        self._lower_case = lower_case

    def setup(self) -> None:
        self._encoder = Encoder(parse_vocab(self._vocab, "vocab.txt"), self._lower_case)

    def process(self, documents: DocumentList[SplitDocument]) -> Iterator[DocumentList[TokenizedDocument]]:
        yield encode_documents(documents, self._encoder)


def read_lists(
    part: Part,
    text_fields: Sequence[str],
    on_bad_document: str,
    max_characters: int,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[DocumentList[Document]]:
    """A part's lists, read lazily one after the other."""
    malformed: dict[str, int] = {}
    examples: list[DroppedDocument] = []
    documents = read_part(
        part,
        text_field=text_fields[part.source],
        on_bad_document=on_bad_document,
        skipped=malformed,
        storage_options=storage_options,
        examples=examples,
    )
    return group_documents(part, documents, malformed, max_characters, examples)


def write_token_part(
    documents: DocumentList[TokenizedDocument], folder_url: str, storage_options: Mapping[str, Any] | None = None
) -> str:
    """Writes a list's three files, then the record that says they are whole; returns the record's name."""
    filesystem, folder = open_filesystem(folder_url, storage_options)
    name = f"{documents.part}-{documents.number:05d}"
    tokens, index = pack_documents(documents.documents)
    write_atomic(filesystem, f"{folder}/{name}.tokens", tokens)
    write_atomic(filesystem, f"{folder}/{name}.index", index)
    write_atomic(filesystem, f"{folder}/{name}.places", pack_places(documents.documents))
    record = f"{name}-last.json" if documents.is_last else f"{name}.json"
    write_atomic(filesystem, f"{folder}/{record}", _format_record(documents))
    return record


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


def read_counters(filesystem: Any, folder: str, records: Sequence[str]) -> dict[int, dict[str, int]]:
    """Sums the counters of all records, by the source's number."""
    totals: dict[int, Counter[str]] = {}
    for data in filesystem.cat([f"{folder}/{record}" for record in records]).values() if records else ():
        counters = json.loads(data)
        counters.pop(_EXAMPLES, None)
        totals.setdefault(counters.pop(_SOURCE, 0), Counter()).update(counters)
    return {source: dict(sorted(found.items())) for source, found in sorted(totals.items())}


def sum_counters(by_source: Mapping[int, Mapping[str, int]]) -> dict[str, int]:
    """The counters of all sources together."""
    total: Counter[str] = Counter()
    for counters in by_source.values():
        total.update(counters)
    return dict(sorted(total.items()))


def read_examples(filesystem: Any, folder: str, records: Sequence[str]) -> list[dict[str, str]]:
    """A few dropped documents of each reason, the first by the records' names: reason, where and text."""
    kept: list[dict[str, str]] = []
    numbers: Counter[str] = Counter()
    found = filesystem.cat([f"{folder}/{record}" for record in records]) if records else {}
    for _, data in sorted(found.items()):
        for example in json.loads(data).get(_EXAMPLES, ()):
            numbers[example["reason"]] += 1
            if numbers[example["reason"]] <= _EXAMPLES_OF_ALL:
                kept.append(example)
    return sorted(kept, key=lambda example: example["reason"])


def _format_record(documents: DocumentList[Any]) -> bytes:
    """What is kept of a list that is done: its counters, its source's number, examples of what was dropped."""
    examples = [dataclasses.asdict(each) for each in documents.dropped]
    return json_bytes(
        dict(documents.counters) | {_SOURCE: documents.source} | ({_EXAMPLES: examples} if examples else {})
    )
