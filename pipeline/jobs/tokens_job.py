"""The tokens job: parts of the input to token parts, a graph of thin shells over document_lists.

    Part | read_lists | EncodeDocuments (clean, filter, split, sign, encode, find task texts)
         | write_token_part

Every stage between reading and writing takes and gives a DocumentList, so a transform of one's own
fits between any two. Running again skips parts whose records, their last files, are all there.
"""

import dataclasses
import json
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import apache_beam as beam

from pipeline.documents import Document, DroppedDocument
from pipeline.documents.parts import Part
from pipeline.documents.read import read_part
from pipeline.jobs import metrics, worker_guard
from pipeline.jobs.broadcast import Broadcast, CreateElements
from pipeline.jobs.run_beam import Outputs, pipeline_options, run_graph
from pipeline.storage.folder import Folder
from pipeline.storage.secret_values import hide_in
from pipeline.text.filters import DocumentFilter, FilterRule
from pipeline.text.task_texts import WindowFinder
from pipeline.tokens.document_lists import (
    DocumentList,
    clean_documents,
    encode_documents,
    filter_documents,
    find_task_texts,
    group_documents,
    sign_documents,
    split_documents,
)
from pipeline.tokens.near_duplicates import pack_signatures
from pipeline.tokens.provenance import OVERLAPS, pack_overlaps, pack_places
from pipeline.tokens.token_parts import TokenizedDocument, pack_documents
from pipeline.tokens.token_records import finished_parts, format_record
from tokenizer.encode import Encoder
from tokenizer.vocab import parse_vocab
from tokenizer.word_rule import WordRule

worker_guard.watch_in_workers()


class DocumentListCoder(beam.coders.Coder):  # type: ignore[misc]
    """Pickle, with a guess of its size: Beam would pickle lists of megabytes to measure them."""

    def encode(self, value: DocumentList[Any]) -> bytes:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)

    def decode(self, encoded: bytes) -> DocumentList[Any]:
        documents: DocumentList[Any] = pickle.loads(encoded)
        return documents

    def estimate_size(self, value: DocumentList[Any]) -> int:
        return 1000 * len(value.documents)


beam.coders.registry.register_coder(DocumentList, DocumentListCoder)


@dataclass(frozen=True)
class ReadingRule:
    """How documents are read."""

    text_fields: Sequence[str]  # by the number of the source
    on_bad_document: str
    max_characters: int  # of one list
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class TokensRule:
    """How documents of the input become token parts."""

    reading: ReadingRule
    filter: FilterRule
    languages: Sequence[str]  # codes by the number of the source, for splitting sentences
    has_signatures: bool
    vocab: bytes  # of vocab.txt
    words: WordRule
    task_texts: Broadcast | None = None  # TaskTexts
    drops_task_texts: bool = True  # or only lists documents with one
    rejected: Folder | None = None  # takes every document that is left out


def run_tokens_job(
    parts: Sequence[Part],
    rule: TokensRule,
    folder: Folder,
    workers: int,
    beam_arguments: Sequence[str],
) -> None:
    """Encodes those of the parts that are not finished in the folder yet."""
    finished = finished_parts(folder.list(), parts)
    missing = [part for part in parts if part.key not in finished]
    if not missing:
        return
    build = partial(add_tokens_graph, parts=missing, rule=rule, folder=folder)

    def count() -> int:
        return len(finished_parts(folder.list(), parts))

    outputs = Outputs("parts of the input", len(parts), len(finished), count, folder)
    run_graph("tokens", build, pipeline_options(workers, beam_arguments, len(missing)), outputs)


def add_tokens_graph(
    pipeline: beam.Pipeline, parts: Sequence[Part], rule: TokensRule, folder: Folder
) -> None:
    """The whole tokens job: parts of the input to token parts."""
    _ = (
        pipeline
        | "Parts" >> CreateElements(largest_first(parts), folder)
        | "ReadDocuments" >> beam.FlatMap(read_lists, rule.reading)
        | EncodeDocuments(rule)
        | "WriteTokenPart" >> beam.Map(write_token_part, folder, rule)
    )


def largest_first(parts: Sequence[Part]) -> list[Part]:
    """Runners deal parts out in turn, so the workers end together."""
    return sorted(parts, key=lambda part: -part.text_bytes)


class EncodeDocuments(
    beam.PTransform[  # type: ignore[misc]
        beam.PCollection[DocumentList[Document]], beam.PCollection[DocumentList[TokenizedDocument]]
    ]
):
    """Lists of documents of the input to encoded ones; what a rule does not ask for is no stage."""

    def __init__(self, rule: TokensRule) -> None:
        super().__init__()
        self._rule = rule

    def display_data(self) -> dict[str, Any]:
        return self._rule.words.content() | {"languages": " ".join(self._rule.languages)}

    def expand(
        self, documents: beam.PCollection[DocumentList[Document]]
    ) -> beam.PCollection[DocumentList[TokenizedDocument]]:
        rule = self._rule
        keeps_words = rule.words.keeps_words
        cleaned = documents | "CleanDocuments" >> beam.Map(clean_documents, keeps_words=keeps_words)
        split = filter_lists(cleaned, rule.filter)
        split |= "SplitSentences" >> beam.Map(
            split_documents, tuple(rule.languages), keeps_words=keeps_words
        )
        if rule.has_signatures:
            split |= "SignDocuments" >> beam.Map(sign_documents)
        encode = _WithTool(encode_documents, _make_encoder, rule)
        encoded = split | "EncodeSentences" >> beam.ParDo(encode)
        find = _WithTool(partial(find_task_texts, drops=rule.drops_task_texts), _make_finder, rule)
        return encoded | "FindTaskTexts" >> beam.ParDo(find) if rule.task_texts else encoded


def filter_lists(documents: beam.PCollection, rule: FilterRule) -> beam.PCollection:
    """Cleaned documents without those that a rule does not keep; no stage where it keeps all."""
    if rule.keeps_all:
        return documents
    asked = _WithTool(filter_documents, DocumentFilter, rule)
    return documents | "FilterDocuments" >> beam.ParDo(asked)


class _WithTool(beam.DoFn):  # type: ignore[misc]
    """Calls a function of lists with a tool that every worker makes once, by a rule."""

    def __init__(self, function: Callable[..., DocumentList[Any]], make: Any, rule: Any) -> None:
        self._function, self._make, self._rule = function, make, rule

    def setup(self) -> None:
        self._tool = self._make(self._rule)

    def process(self, documents: DocumentList[Any]) -> Iterator[DocumentList[Any]]:
        yield self._function(documents, self._tool)


def _make_encoder(rule: TokensRule) -> Encoder:
    return Encoder(parse_vocab(rule.vocab, "vocab.txt"), rule.words)


def _make_finder(rule: TokensRule) -> WindowFinder:
    assert rule.task_texts is not None, "no texts to find"
    return WindowFinder(rule.task_texts.get(), _make_encoder(rule))


def read_lists(part: Part, rule: ReadingRule) -> Iterator[DocumentList[Document]]:
    """A part's lists, read lazily one after the other."""
    malformed: dict[str, int] = {}
    examples: list[DroppedDocument] = []
    without_text: list[str] = []
    documents = read_part(
        part,
        text_field=rule.text_fields[part.source],
        on_bad_document=rule.on_bad_document,
        skipped=malformed,
        storage_options=rule.storage_options,
        examples=examples,
        without_text=without_text,
    )
    lists = group_documents(part, documents, malformed, rule.max_characters, examples, without_text)
    keeps_all = rule.on_bad_document == "keep"
    return (dataclasses.replace(each, keeps_dropped=keeps_all) for each in lists)


def write_token_part(
    documents: DocumentList[TokenizedDocument], folder: Folder, rule: TokensRule
) -> str:
    """Writes a list's files, then the record that says they are whole; returns its name."""
    began, name = time.monotonic(), f"{documents.part}-{documents.number:05d}"
    tokens, index = pack_documents(documents.documents)
    folder.write(f"{name}.tokens", tokens)
    folder.write(f"{name}.index", index)
    folder.write(f"{name}.places", pack_places(documents.documents))
    if rule.has_signatures:
        folder.write(f"{name}.signatures", pack_signatures(documents.documents))
    if documents.overlaps:
        folder.write(f"{name}{OVERLAPS}", pack_overlaps(documents.overlaps))
    if rule.rejected and documents.dropped:
        lines = (json.dumps(hide_in(asdict(each))) + "\n" for each in documents.dropped)
        rule.rejected.write(f"{name}.jsonl", "".join(lines).encode())
    record = f"{name}-last.json" if documents.is_last else f"{name}.json"
    folder.write(record, format_record(documents))
    number, milliseconds = len(documents.documents), 1000 * (time.monotonic() - began)
    cleaned_bytes = sum(document.cleaned_bytes for document in documents.documents)
    metrics.count({**documents.counters, "documents": number, "cleaned_bytes": cleaned_bytes})
    metrics.observe(
        {"documents_a_part": number, "bytes_a_part": len(tokens), "ms_a_part": milliseconds}
    )
    return record
