"""The tokens job: parts of the input to token parts, a Beam graph of thin shells over document_lists.

    Part | ReadDocuments | CleanDocuments | FilterDocuments | SplitSentences | SignDocuments
         | EncodeDocuments | FindTaskTexts | WriteTokenParts

Filtering, signing and finding texts of task files are there where the settings ask for them. Every
stage between reading and writing takes and gives a DocumentList, so a transform of one's own fits
between any two. A finished list leaves its files and, last, a small record; running again skips
parts whose records are all there.
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam

from pipeline.documents import Document, DroppedDocument
from pipeline.documents.parts import Part
from pipeline.documents.read import read_part
from pipeline.jobs import metrics, worker_guard
from pipeline.jobs.broadcast import Broadcast, CreateElements
from pipeline.jobs.run_beam import Outputs, pipeline_options, run_graph
from pipeline.storage.folder import Folder
from pipeline.text.filters import DocumentFilter, FilterRule
from pipeline.text.task_texts import WindowFinder
from pipeline.tokens.document_lists import (
    DocumentList,
    SplitDocument,
    clean_documents,
    encode_documents,
    filter_documents,
    find_task_texts,
    group_documents,
    sign_documents,
    split_documents,
)
from pipeline.tokens.near_duplicates import pack_signatures
from pipeline.tokens.overlaps import OVERLAPS, pack_overlaps
from pipeline.tokens.provenance import pack_places
from pipeline.tokens.token_parts import TokenizedDocument, pack_documents
from pipeline.tokens.token_records import finished_parts, format_record
from tokenizer.encode import Encoder
from tokenizer.vocab import parse_vocab

worker_guard.watch_in_workers()


class DocumentListCoder(beam.coders.Coder):  # type: ignore[misc]
    """Pickle, as for any type without a coder of its own, but with the size told, not found by pickling.

    Lists travel inside the runner, never by a file beside the output. Beam measures the elements of
    every stage, the first ten and every so often one: with lists of megabytes that was 6 % of a
    build. It chooses the coder by the types that it infers from the annotations of the stages'
    functions.
    """

    def encode(self, value: DocumentList[Any]) -> bytes:
        """The list's bytes."""
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)

    def decode(self, encoded: bytes) -> DocumentList[Any]:
        """The list again."""
        documents: DocumentList[Any] = pickle.loads(encoded)
        return documents

    def estimate_size(self, value: DocumentList[Any]) -> int:
        """Its text or tokens, in characters or bytes."""
        return sum(map(_size_of, value.documents))


def _size_of(document: Document | SplitDocument | TokenizedDocument) -> int:
    if isinstance(document, Document):
        return len(document.text)
    if isinstance(document, SplitDocument):
        return document.cleaned_bytes
    return document.tokens.nbytes + document.sentence_lengths.nbytes


for _kind in (Document, SplitDocument, TokenizedDocument):
    beam.coders.registry.register_coder(DocumentList[_kind], DocumentListCoder)  # type: ignore[valid-type]


@dataclass(frozen=True)
class ReadingRule:
    """How documents are read.

    Attributes:
        text_fields: Field of a JSONL object that holds the text, by the number of the source.
        on_bad_document: stop or skip.
        max_characters: Text of one list.
        storage_options: Options of the input's filesystem.
    """

    text_fields: Sequence[str]
    on_bad_document: str
    max_characters: int
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class TokensRule:
    """How documents of the input become token parts.

    Attributes:
        reading: How they are read.
        filter: Which of them stay.
        languages: The languages by whose rules sentences are split: codes, by the number of the
            source.
        has_signatures: Whether documents are signed, for near-duplicates.
        vocab: Bytes of vocab.txt.
        lower_case: Whether the vocabulary is uncased.
        task_texts: What no document may hold (`pipeline.text.task_texts.TaskTexts`); None where all
            may.
        drops_task_texts: Whether documents that do are left out, or only listed.
    """

    reading: ReadingRule
    filter: FilterRule
    languages: Sequence[str]
    has_signatures: bool
    vocab: bytes
    lower_case: bool
    task_texts: Broadcast | None = None
    drops_task_texts: bool = True


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

    def build(pipeline: beam.Pipeline) -> None:
        add_tokens_graph(pipeline, missing, rule, folder)

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
        | ReadDocuments(rule.reading)
        | CleanDocuments()
        | FilterDocuments(rule.filter)
        | SplitSentences(rule.languages)
        | SignDocuments(has_signatures=rule.has_signatures)
        | EncodeDocuments(rule.vocab, rule.lower_case)
        | FindTaskTexts(rule)
        | WriteTokenParts(folder, has_signatures=rule.has_signatures)
    )


class ReadDocuments(beam.PTransform):  # type: ignore[misc]
    """Parts to lists of documents as they stand in the input."""

    def __init__(self, rule: ReadingRule) -> None:
        super().__init__()
        self._rule = rule

    def expand(self, parts: beam.PCollection) -> beam.PCollection:
        return parts | beam.FlatMap(read_lists, self._rule)


def largest_first(parts: Sequence[Part]) -> list[Part]:
    """Runners deal parts out in turn, so the workers end together."""
    return sorted(parts, key=lambda part: -part.text_bytes)


class CleanDocuments(beam.PTransform):  # type: ignore[misc]
    """Cleans texts and drops empty documents."""

    def expand(self, documents: beam.PCollection) -> beam.PCollection:
        return documents | beam.Map(clean_documents)


class FilterDocuments(beam.PTransform):  # type: ignore[misc]
    """Drops cleaned documents that a rule does not keep; nothing is added to the graph where it keeps all."""

    def __init__(self, rule: FilterRule) -> None:
        super().__init__()
        self._rule = rule

    def expand(self, documents: beam.PCollection) -> beam.PCollection:
        return documents if self._rule.keeps_all else documents | beam.ParDo(_Filter(self._rule))


class SplitSentences(beam.PTransform):  # type: ignore[misc]
    """Splits documents into sentences of a bounded length, by the rules of their source's language (its code)."""

    def __init__(self, languages: Sequence[str]) -> None:
        super().__init__()
        self._languages = tuple(languages)

    def expand(self, documents: beam.PCollection) -> beam.PCollection:
        return documents | beam.Map(split_documents, self._languages)


class SignDocuments(beam.PTransform):  # type: ignore[misc]
    """Signs documents, for near-duplicates; nothing is added to the graph where these are not looked for."""

    def __init__(self, *, has_signatures: bool) -> None:
        super().__init__()
        self._has_signatures = has_signatures

    def expand(self, documents: beam.PCollection) -> beam.PCollection:
        return documents | beam.Map(sign_documents) if self._has_signatures else documents


class EncodeDocuments(beam.PTransform):  # type: ignore[misc]
    """Encodes sentences with the vocabulary whose vocab.txt has these bytes."""

    def __init__(self, vocab: bytes, lower_case: bool) -> None:
        super().__init__()
        self._vocab = vocab
        self._lower_case = lower_case

    def expand(self, documents: beam.PCollection) -> beam.PCollection:
        return documents | beam.ParDo(_Encode(self._vocab, self._lower_case))


class FindTaskTexts(beam.PTransform):  # type: ignore[misc]
    """Leaves out or lists what holds text of task files; nothing is added to the graph where there are none."""

    def __init__(self, rule: TokensRule) -> None:
        super().__init__()
        self._rule = rule

    def expand(self, documents: beam.PCollection) -> beam.PCollection:
        return documents | beam.ParDo(_Find(self._rule)) if self._rule.task_texts else documents


class WriteTokenParts(beam.PTransform):  # type: ignore[misc]
    """Writes each list as a token part below a folder and yields the name of its record."""

    def __init__(self, folder: Folder, *, has_signatures: bool = False) -> None:
        super().__init__()
        self._arguments = (folder, has_signatures)

    def expand(self, documents: beam.PCollection) -> beam.PCollection:
        return documents | beam.Map(write_token_part, *self._arguments)


class _Filter(beam.DoFn):  # type: ignore[misc]
    def __init__(self, rule: FilterRule) -> None:
        self._rule = rule

    def setup(self) -> None:
        self._filter = DocumentFilter(self._rule)

    def process(self, documents: DocumentList[Document]) -> Iterator[DocumentList[Document]]:
        yield filter_documents(documents, self._filter)


class _Encode(beam.DoFn):  # type: ignore[misc]
    def __init__(self, vocab: bytes, lower_case: bool) -> None:
        self._vocab = vocab
        self._lower_case = lower_case

    def setup(self) -> None:
        self._encoder = Encoder(parse_vocab(self._vocab, "vocab.txt"), self._lower_case)

    def process(
        self, documents: DocumentList[SplitDocument]
    ) -> Iterator[DocumentList[TokenizedDocument]]:
        yield encode_documents(documents, self._encoder)


class _Find(beam.DoFn):  # type: ignore[misc]
    def __init__(self, rule: TokensRule) -> None:
        self._rule = rule

    def setup(self) -> None:
        assert self._rule.task_texts is not None, "no texts to find"
        encoder = Encoder(parse_vocab(self._rule.vocab, "vocab.txt"), self._rule.lower_case)
        self._finder = WindowFinder(self._rule.task_texts.get(), encoder)

    def process(
        self, documents: DocumentList[TokenizedDocument]
    ) -> Iterator[DocumentList[TokenizedDocument]]:
        yield find_task_texts(documents, self._finder, drops=self._rule.drops_task_texts)


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
    return group_documents(part, documents, malformed, rule.max_characters, examples, without_text)


def write_token_part(
    documents: DocumentList[TokenizedDocument], folder: Folder, has_signatures: bool = False
) -> str:
    """Writes a list's files, then the record that says they are whole; returns the record's name."""
    name = f"{documents.part}-{documents.number:05d}"
    tokens, index = pack_documents(documents.documents)
    folder.write(f"{name}.tokens", tokens)
    folder.write(f"{name}.index", index)
    folder.write(f"{name}.places", pack_places(documents.documents))
    if has_signatures:
        folder.write(f"{name}.signatures", pack_signatures(documents.documents))
    if documents.overlaps:
        folder.write(f"{name}{OVERLAPS}", pack_overlaps(documents.overlaps))
    record = f"{name}-last.json" if documents.is_last else f"{name}.json"
    folder.write(record, format_record(documents))
    cleaned_bytes = sum(document.cleaned_bytes for document in documents.documents)
    metrics.count(
        {
            **documents.counters,
            "documents": len(documents.documents),
            "cleaned_bytes": cleaned_bytes,
        }
    )
    return record
