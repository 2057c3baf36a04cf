"""Documents of a PCollection as token parts, then a dataset; and its instances again.

    document | lists of some part_bytes | EncodeDocuments | write_token_part | finish_tokens

What runs between lists and parts is the tokens job's own, so the same texts give the same root hash
as a build from files.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import apache_beam as beam

from pipeline.documents import Document, DroppedDocument
from pipeline.jobs.tokens_job import EncodeDocuments, write_token_part
from pipeline.settings import BuildSettings
from pipeline.shards.block import to_record_batch
from pipeline.shards.dataset import Dataset, open_dataset, read_blocks
from pipeline.stages.build import run_shards
from pipeline.stages.build_tokens import DELIVERED, STORE, claim_tokens, tokens_rule
from pipeline.stages.build_vocab import prepare_vocabulary
from pipeline.storage.folder import Folder
from pipeline.storage.secret_values import hide
from pipeline.tokens.document_lists import DocumentList
from pipeline.tokens.token_records import read_records
from pipeline.transforms.webdataset import in_one_window


class WriteTokens(
    beam.PTransform[  # type: ignore[misc]
        beam.PCollection[str | Document], dict[str, beam.PCollection[str | DroppedDocument]]
    ]
):
    """Writes texts or `Document`s as token parts of a dataset, which `finish_build` makes.

    Yields "parts", the names of their records, and "rejected", a `DroppedDocument` for each that is
    left out.
    """

    def __init__(self, output: str, vocab: str, **settings: Any) -> None:
        """Keeps the settings of a build (`pipeline.settings.BuildSettings`).

        Their `sources` name what `Document.source` may be.
        """
        super().__init__()
        self._settings = _make_settings(output, vocab, settings)

    def display_data(self) -> dict[str, Any]:
        return {"output": hide(self._settings.output), "vocab": hide(str(self._settings.vocab))}

    def expand(self, documents: beam.PCollection[str | Document]) -> Any:
        settings = self._settings
        vocabulary = prepare_vocabulary(settings, (), (), ())
        folder, rule = claim_tokens(settings, vocabulary), tokens_rule(settings, vocabulary)
        convert = beam.Map(to_document).with_output_types(Document)
        found = in_one_window(documents, self) | "ToDocuments" >> convert
        size = settings.part_bytes
        encoded = (
            found
            | beam.BatchElements(size, size, element_size_fn=lambda each: 1 + len(each.text))
            | "ToLists" >> beam.FlatMap(to_lists, [source.name for source in settings.corpus])
            | EncodeDocuments(rule)
        )
        list_rejected = beam.FlatMap(lambda documents: documents.dropped)
        rejected = encoded | "Rejected" >> list_rejected.with_output_types(DroppedDocument)
        number = found | "CountDocuments" >> beam.combiners.Count.Globally()
        parts = (
            encoded
            | "WriteTokenPart" >> beam.Map(write_token_part, folder, rule)
            | "ListParts" >> beam.combiners.ToList()
            | "FinishTokens" >> beam.FlatMap(finish_tokens, beam.pvalue.AsSingleton(number), folder)
        )
        return {"parts": parts, "rejected": rejected}


def finish_build(
    output: str, vocab: str, *, beam_arguments: Sequence[str] = (), **settings: Any
) -> Dataset:
    """Makes the dataset of what `WriteTokens` has written, as `python -m pipeline shards` does.

    Settings are those that `WriteTokens` had, and those that decide instances. Without
    `beam_arguments` the jobs run in local worker processes.
    """
    return run_shards(_make_settings(output, vocab, settings), beam_arguments)


def _make_settings(output: str, vocab: str, settings: Mapping[str, Any]) -> BuildSettings:
    """Sources need no input here: their documents come from a PCollection."""
    sources = [replace(each, input=each.input or ["-"]) for each in settings.get("sources", ())]
    return BuildSettings(output=output, vocab=vocab, **{**settings, "sources": sources})


def to_document(document: str | Document) -> Document:
    """A document, also of text alone.

    Raises:
        ValueError: It is something else.
    """
    if isinstance(document, str):
        return Document(document)
    if not isinstance(document, Document):
        kind = type(document).__name__
        raise ValueError(  # noqa: TRY004 - a user's fault, which runners pass on
            f"a document is a {kind}, expected str or pipeline.documents.Document"
        )
    return document


def to_lists(
    documents: Sequence[Document], sources: Sequence[str]
) -> Iterator[DocumentList[Document]]:
    """Documents as a list for each source; a list is named by the hash of what it holds.

    Raises:
        ValueError: A document is of no source that the settings name.
    """
    by_source: dict[int, list[Document]] = {}
    for each in documents:
        name = each.source or sources[0]
        if name not in sources or (not each.source and len(sources) > 1):
            raise ValueError(
                f"a document ({each.where or each.text[:40]!r}) is of the source {each.source!r},"
                f" expected one of {', '.join(sources)}"
            )
        by_source.setdefault(sources.index(name), []).append(each)
    for number, own in sorted(by_source.items()):
        digest = hashlib.blake2b(str(number).encode(), digest_size=16)
        for each in own:
            digest.update(repr((each.text, each.where, each.is_split)).encode())
        counters = {"documents_read": len(own)}
        yield DocumentList(
            digest.hexdigest(), 0, True, own, counters, source=number, keeps_dropped=True
        )


def finish_tokens(records: Sequence[str], number: int, folder: Folder) -> Iterator[str]:
    """Writes which token parts there are; yields the names of their records.

    Lists that hold the same have one part: a document's copies are dropped from a build anyhow.

    Raises:
        ValueError: They do not hold every document once.
    """
    names = sorted({*records})
    rows = dict(zip(names, read_records(folder, names), strict=True))
    found = sum(rows[name]["documents_read"] for name in records)
    if found != number:
        raise ValueError(
            f"{folder.url}: token parts of {found:,} documents were written, expected {number:,}:"
            " the runner loses or repeats what it delivers; run again, or on another runner"
        )
    data = json.dumps(names).encode()
    if not folder.exists(DELIVERED) or folder.read(DELIVERED) != data:
        folder.remove([STORE])
        folder.write(DELIVERED, data)
    yield from names


class ReadInstances(
    beam.PTransform[beam.pvalue.PBegin, beam.PCollection[dict[str, Any]]]  # type: ignore[misc]
):
    """Instances of a dataset: dicts of split, seq_len, pass_index and docs/format.md's columns."""

    def __init__(
        self,
        dataset: str,
        split: str | None = None,
        seq_len: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Keeps what is read of the dataset at a URL: all, or one split or one length."""
        super().__init__()
        self._dataset, self._split, self._seq_len = dataset, split, seq_len
        self._options = storage_options

    def display_data(self) -> dict[str, Any]:
        return {"dataset": hide(self._dataset)}

    def expand(self, pipeline: beam.pvalue.PBegin) -> beam.PCollection[dict[str, Any]]:
        dataset = open_dataset(self._dataset, self._options)
        chosen = [
            shard.name
            for shard in dataset.all_shards
            if self._split in (None, shard.split) and self._seq_len in (None, shard.seq_len)
        ]
        if not chosen:
            dataset.num_passes(str(self._split), self._seq_len or 0)  # says what there is
        return (
            pipeline
            | "Shards" >> beam.Create(chosen, reshuffle=True)
            | "ReadShards" >> beam.FlatMap(read_instances, self._dataset, self._options)
        )


def read_instances(
    name: str, url: str, options: Mapping[str, Any] | None
) -> Iterator[dict[str, Any]]:
    """The instances of a shard, in order; raises as `read_blocks`."""
    dataset = _open(url, json.dumps(options))
    [shard] = [each for each in dataset.all_shards if each.name == name]
    place = {"split": shard.split, "seq_len": shard.seq_len, "pass_index": shard.pass_index}
    for block in read_blocks(dataset, shard):
        yield from (place | row for row in to_record_batch(block).to_pylist())


@cache
def _open(url: str, options: str) -> Dataset:
    return open_dataset(url, json.loads(options))
