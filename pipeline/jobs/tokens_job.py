"""The tokens job reads the parts of the input, and writes their documents encoded as token parts.

    Part | read_lists | EncodeDocuments (clean, filter, split, sign, encode, find task texts)
         | write_token_part

The work is done by functions of pipeline.tokens.document_lists. To sign a document is to compute
the MinHash signature by which near-duplicates are found. Task texts are the texts of tasks that a
model is tested on, which should not be in its training data. Every stage between reading and
writing takes a DocumentList and returns one, so you can put your own transform between any two
stages. The record of a token part is written after its other files. A part of the input is not read
again if all its records are there.
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
    """Encodes lists of documents by pickle, and estimates their encoded size.

    Beam asks for the size of elements. Without the estimate, it would pickle each list, which has
    megabytes, only to measure it.
    """

    def encode(self, value: DocumentList[Any]) -> bytes:
        """Returns the list as a pickle."""
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)

    def decode(self, encoded: bytes) -> DocumentList[Any]:
        """Returns the list that `encode` encoded."""
        documents: DocumentList[Any] = pickle.loads(encoded)
        return documents

    def estimate_size(self, value: DocumentList[Any]) -> int:
        """Returns a guess of the encoded size in bytes: 1,000 per document."""
        return 1000 * len(value.documents)


beam.coders.registry.register_coder(DocumentList, DocumentListCoder)


@dataclass(frozen=True)
class ReadingRule:
    """Decides how documents are read and gathered into lists.

    Attributes:
        text_fields: For each source, the name of the field or column that holds the text.
        on_bad_document: What happens to a malformed document: "stop", "skip" or "keep".
        max_characters: A list ends once its documents have this many characters of text.
        storage_options: Options of the filesystem of the input.
    """

    text_fields: Sequence[str]
    on_bad_document: str
    max_characters: int
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class TokensRule:
    """Decides how documents of the input become token parts.

    Attributes:
        reading: How documents are read.
        filter: Which documents are left out.
        languages: For each source, the code of the language by whose rules sentences are split.
        has_signatures: Whether signatures for finding near-duplicates are written.
        vocab: The bytes of vocab.txt.
        words: How text is divided into words.
        task_texts: The `TaskTexts` to look for in documents; None to look for none.
        drops_task_texts: Whether documents with such a text are dropped. Otherwise they are only
            listed.
        rejected: A folder that receives every document that is left out; None to write none.
    """

    reading: ReadingRule
    filter: FilterRule
    languages: Sequence[str]
    has_signatures: bool
    vocab: bytes
    words: WordRule
    task_texts: Broadcast | None = None
    drops_task_texts: bool = True
    rejected: Folder | None = None


def run_tokens_job(
    parts: Sequence[Part],
    rule: TokensRule,
    folder: Folder,
    workers: int,
    beam_arguments: Sequence[str],
) -> None:
    """Encodes the parts that are not finished in the folder yet.

    Args:
        parts: All parts of the input.
        rule: How documents become token parts.
        folder: Receives the token parts.
        workers: The number of local worker processes.
        beam_arguments: The user's arguments for Beam.

    Raises:
        ValueError: A document is malformed, or an option of Beam is unknown.
    """
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
    """Adds the whole tokens job to a pipeline.

    Args:
        pipeline: The pipeline.
        parts: The parts of the input to encode.
        rule: How documents become token parts.
        folder: Receives the token parts.
    """
    _ = (
        pipeline
        | "Parts" >> CreateElements(largest_first(parts), folder)
        | "ReadDocuments" >> beam.FlatMap(read_lists, rule.reading)
        | EncodeDocuments(rule)
        | "WriteTokenPart" >> beam.Map(write_token_part, folder, rule)
    )


def largest_first(parts: Sequence[Part]) -> list[Part]:
    """Returns the parts sorted by the size of their text, the largest first.

    Runners give parts to workers in this order. If a large part came last, one worker would still
    be busy with it when all others have ended.
    """
    return sorted(parts, key=lambda part: -part.text_bytes)


class EncodeDocuments(
    beam.PTransform[  # type: ignore[misc]
        beam.PCollection[DocumentList[Document]], beam.PCollection[DocumentList[TokenizedDocument]]
    ]
):
    """Turns lists of documents of the input into lists of encoded documents.

    A step that the rule does not need, such as filtering, adds no stage to the graph.
    """

    def __init__(self, rule: TokensRule) -> None:
        """Keeps the rule.

        Args:
            rule: Decides how documents become token parts. Its `reading` and `rejected` are for
                the steps before and after this transform, and are ignored here.
        """
        super().__init__()
        self._rule = rule

    def display_data(self) -> dict[str, Any]:
        """Returns the settings that a runner shows for this transform."""
        return self._rule.words.content() | {"languages": " ".join(self._rule.languages)}

    def expand(
        self, documents: beam.PCollection[DocumentList[Document]]
    ) -> beam.PCollection[DocumentList[TokenizedDocument]]:
        """Adds a stage for each step, from cleaning to finding the texts of tasks."""
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
        if not rule.task_texts:
            return encoded
        find = _WithTool(partial(find_task_texts, drops=rule.drops_task_texts), _make_finder, rule)
        return encoded | "FindTaskTexts" >> beam.ParDo(find)


def filter_lists(documents: beam.PCollection, rule: FilterRule) -> beam.PCollection:
    """Adds a stage that drops the documents which a rule does not keep, unless it keeps all.

    Args:
        documents: Lists of cleaned documents.
        rule: Which documents are kept.
    """
    if rule.keeps_all:
        return documents
    drop = _WithTool(filter_documents, DocumentFilter, rule)
    return documents | "FilterDocuments" >> beam.ParDo(drop)


class _WithTool(beam.DoFn):  # type: ignore[misc]
    """Calls a function with each list of documents and a tool, such as an encoder.

    The tool is not sent to the workers. Every worker makes its own tool from a rule, once.
    """

    def __init__(self, function: Callable[..., DocumentList[Any]], make: Any, rule: Any) -> None:
        """Keeps the arguments.

        Args:
            function: Takes a list of documents and the tool, and returns a list of documents.
            make: Makes the tool from `rule`.
            rule: The argument of `make`. It is sent to the workers.
        """
        self._function = function
        self._make = make
        self._rule = rule

    def setup(self) -> None:
        """Makes the tool. Beam calls this once in each worker."""
        self._tool = self._make(self._rule)

    def process(self, documents: DocumentList[Any]) -> Iterator[DocumentList[Any]]:
        """Yields the one list that the function returns."""
        yield self._function(documents, self._tool)


def _make_encoder(rule: TokensRule) -> Encoder:
    """Returns the encoder for the rule's vocabulary."""
    return Encoder(parse_vocab(rule.vocab, "vocab.txt"), rule.words)


def _make_finder(rule: TokensRule) -> WindowFinder:
    """Returns the finder of the rule's task texts in documents. The rule must have task texts."""
    assert rule.task_texts is not None, "no texts to find"
    return WindowFinder(rule.task_texts.get(), _make_encoder(rule))


def read_lists(part: Part, rule: ReadingRule) -> Iterator[DocumentList[Document]]:
    """Yields the lists of a part's documents. The part is read lazily, one list at a time.

    Raises:
        ValueError: A document is malformed, and the rule says to stop.
    """
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
    return (dataclasses.replace(gathered, keeps_dropped=keeps_all) for gathered in lists)


def write_token_part(
    documents: DocumentList[TokenizedDocument], folder: Folder, rule: TokensRule
) -> str:
    """Writes a list of documents as one token part, and returns the file name of its record.

    The record is written last, and marks the part as complete.

    Args:
        documents: A list of encoded documents.
        folder: Receives the files.
        rule: Says whether signatures and dropped documents are written.
    """
    began = time.monotonic()
    name = f"{documents.part}-{documents.number:05d}"
    tokens, index = pack_documents(documents.documents)
    folder.write(f"{name}.tokens", tokens)
    folder.write(f"{name}.index", index)
    folder.write(f"{name}.places", pack_places(documents.documents))
    if rule.has_signatures:
        folder.write(f"{name}.signatures", pack_signatures(documents.documents))
    if documents.overlaps:
        folder.write(f"{name}{OVERLAPS}", pack_overlaps(documents.overlaps))
    if rule.rejected and documents.dropped:
        lines = (json.dumps(hide_in(asdict(dropped))) + "\n" for dropped in documents.dropped)
        rule.rejected.write(f"{name}.jsonl", "".join(lines).encode())
    record = f"{name}-last.json" if documents.is_last else f"{name}.json"
    folder.write(record, format_record(documents))

    num_documents = len(documents.documents)
    milliseconds = 1000 * (time.monotonic() - began)
    cleaned_bytes = sum(document.cleaned_bytes for document in documents.documents)
    metrics.count(
        {**documents.counters, "documents": num_documents, "cleaned_bytes": cleaned_bytes}
    )
    metrics.observe(
        {"documents_a_part": num_documents, "bytes_a_part": len(tokens), "ms_a_part": milliseconds}
    )
    sizes = (document.cleaned_bytes for document in documents.documents)
    metrics.observe_each("cleaned_bytes_a_document", sizes)
    lengths = (len(document.tokens) for document in documents.documents)
    metrics.observe_each("tokens_a_document", lengths)
    return record
