"""Makes a dataset of the documents of your own Beam pipeline, and reads a dataset's instances.

`WriteTokens` adds these steps to your pipeline, and `finish_build` then makes the dataset:

    document | lists of some part_bytes | EncodeDocuments | write_token_part | finish_tokens

`EncodeDocuments` and `write_token_part` are steps of the tokens job (`pipeline.jobs.tokens_job`),
so the same texts give the same root hash as a build from files. Nothing is written before the
pipeline runs.

`ReadInstances` reads the instances of a finished dataset into a PCollection.
"""

import hashlib
import json
import os
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import apache_beam as beam

from pipeline.command_line.hints import hints_of
from pipeline.command_line.names import answer_unknown
from pipeline.command_line.values import convert, plain_node
from pipeline.documents import Document, DroppedDocument
from pipeline.documents.source import Source
from pipeline.jobs.broadcast import broadcast, describe_broadcast
from pipeline.jobs.tokens_job import EncodeDocuments, TokensRule, write_token_part
from pipeline.settings import BuildSettings
from pipeline.shards.block import to_record_batch
from pipeline.shards.dataset import Dataset, open_dataset, read_blocks
from pipeline.shards.manifest import SHARDS_TABLE
from pipeline.shards.records import json_bytes
from pipeline.stages.build import run_shards
from pipeline.stages.build_tokens import (
    Delivered,
    claim_folder,
    open_task_texts,
    read_delivered,
    refuse_other_settings,
    store_settings,
    tokens_rule,
)
from pipeline.stages.build_vocab import ORIGIN, prepare_vocabulary
from pipeline.stages.corpus import DELIVERED, STORE, VOCAB, read_vocabulary
from pipeline.stages.publish import refuse_redacted
from pipeline.storage.folder import Folder
from pipeline.storage.quoting import quote
from pipeline.storage.secret_values import hide
from pipeline.tokens.document_lists import DocumentList
from pipeline.tokens.token_records import read_records
from pipeline.transforms.input import in_one_window, place_of, refuse_second_writer

_HASH_BYTES = 16
_CALLED = "WriteTokens"  # in messages about its settings
_RECORD = re.compile(r"(?P<digest>[0-9a-f]{32})-00000-last\.json")
"""The record of a list: its name begins with the sum of the hashes of the list's documents."""
_ONE_WRITER = (
    "join the branches, as in `(news, books) | beam.Flatten() | WriteTokens(...)`, where"
    " Document(text, where, source=...) names a document's source"
)
_ADVICE = "the runner loses, repeats or changes what it delivers: run again, or on another runner"


class WriteTokens(
    beam.PTransform[  # type: ignore[misc]
        beam.PCollection[str | Document], dict[str, beam.PCollection[str | DroppedDocument]]
    ]
):
    """Writes the documents of a PCollection as token parts, which `finish_build` completes.

    Documents are cleaned, filtered, split into sentences and encoded, as `python -m pipeline build`
    does with the documents of files. The same texts give a dataset with the same root hash.

    The input is a bounded PCollection of `str` or `Document`. If there are several `sources`, every
    element must be a `Document` that names its source.

    The output is a dict of two PCollections:

    - `"parts"`: for each token part, a `str` with the name of its record. It has no elements before
      all parts are written.
    - `"rejected"`: a `DroppedDocument` (`reason`, `where`, `text`) for each document that is left
      out because of its text. Copies are not among these: `finish_build` leaves them out.

    All documents of one dataset must go through one `WriteTokens` of one pipeline. Join several
    PCollections by `beam.Flatten()`. The same pipeline may run again, to the same result.

    Raises:
        FileNotFoundError: When the transform is applied, the vocabulary or a task file does not
            exist.
        ValueError: When the transform is applied, the output holds a dataset of other settings,
            another transform writes there, or the PCollection is unbounded. While the pipeline
            runs, an element is no document or its source is unknown, the output holds documents of
            another pipeline, or the runner lost or repeated documents.

    Examples:
        ```python
        import apache_beam as beam

        from pipeline import WriteTokens, finish_build

        settings = {"seq_lens": [128], "min_characters": 20}

        with beam.Pipeline() as pipeline:
            texts = pipeline | beam.io.ReadFromText("documents.txt")  # one document per line
            written = texts | WriteTokens("my-data", "vocab.txt", **settings)
            written["rejected"] | beam.Map(print)

        dataset = finish_build("my-data", "vocab.txt", **settings)
        ```
    """

    def __init__(
        self, output: str | os.PathLike[str], vocab: str | os.PathLike[str], **settings: Any
    ) -> None:
        """Takes the settings of a build.

        Args:
            output: Folder or URL of the dataset.
            vocab: A vocab.txt, the folder of a model that has one, or a model of the Hub.
            **settings: Other settings of `python -m pipeline build` (docs/commands.md), such as
                `min_characters=20`. `sources` is a list of `Source`, with the names that
                `Document.source` may have.

        Raises:
            ValueError: A setting is unknown, or has a value of a wrong type.
        """
        super().__init__()
        self._settings = _make_settings(output, vocab, settings)

    def display_data(self) -> dict[str, Any]:
        """Returns the settings that a runner shows for this transform."""
        return {"output": hide(self._settings.output), "vocab": hide(str(self._settings.vocab))}

    def written_places(self) -> set[str]:
        """Returns the folder of the dataset and the folder of the token parts."""
        return {place_of(self._settings.open_output()), place_of(self._settings.open_tokens())}

    def expand(self, documents: beam.PCollection[str | Document]) -> Any:
        """Adds the steps to the pipeline of the documents; returns the dict of outputs.

        Reads the vocabulary and what is in the output already, and writes nothing.

        Raises:
            FileNotFoundError: The vocabulary or a task file does not exist.
            ValueError: The PCollection is unbounded, another transform of the pipeline writes to
                the same output, or the output holds a dataset of other settings.
        """
        settings = self._settings
        pipeline = documents.pipeline
        refuse_second_writer(pipeline, self, _ONE_WRITER)
        folder = settings.open_tokens()
        claim = make_claim(settings)
        claimed = beam.pvalue.AsSingleton(
            pipeline
            | "Claim" >> beam.Create([None])
            | "ClaimOutput" >> beam.Map(claim_output, claim)
        )
        names = [source.name for source in settings.corpus]
        convert = beam.Map(to_document, names).with_output_types(Document)
        converted = in_one_window(documents, self) | "ToDocuments" >> convert
        size = settings.part_bytes
        batch = beam.BatchElements(
            size, size, element_size_fn=lambda document: 1 + len(document.text)
        )
        encoded = (
            converted
            | batch
            | "ToLists" >> beam.FlatMap(to_lists, names, claimed)
            | EncodeDocuments(claim.rule)
        )
        list_rejected = beam.FlatMap(lambda documents: documents.dropped)
        rejected = encoded | "Rejected" >> list_rejected.with_output_types(DroppedDocument)
        tally = (
            converted
            | "TallyDocuments" >> beam.Map(tally_document)
            | "AddTallies" >> beam.CombineGlobally(add_tallies)
        )
        parts = (
            encoded
            | "WriteTokenPart" >> beam.Map(write_token_part, folder, claim.rule)
            | "ListParts" >> beam.combiners.ToList()
            | "FinishTokens"
            >> beam.FlatMap(finish_tokens, beam.pvalue.AsSingleton(tally), folder, claimed)
        )
        return {"parts": parts, "rejected": rejected}


def finish_build(
    output: str | os.PathLike[str],
    vocab: str | os.PathLike[str],
    *,
    beam_arguments: Sequence[str] = (),
    **settings: Any,
) -> Dataset:
    """Makes a dataset of the token parts that `WriteTokens` has written.

    Copies of documents are left out, pairs and masks are made, and shards are written. What is
    finished already is not made again, so an interrupted call can be repeated. `python -m pipeline
    shards` does the same.

    Args:
        output: Folder or URL of the dataset.
        vocab: The vocabulary that `WriteTokens` was given.
        beam_arguments: Arguments of Beam for the jobs, such as `["--runner=FlinkRunner"]`. Without
            any they run in local worker processes.
        **settings: The settings that `WriteTokens` was given, and settings of the instances, such
            as `seq_lens=[128]` and `passes=2`.

    Returns:
        The finished dataset, opened.

    Raises:
        FileNotFoundError: No pipeline has finished writing there.
        FileExistsError: Another build writes there.
        ValueError: The settings differ from those of `WriteTokens`, or from those of a dataset that
            is there, or there are too few documents.

    Examples:
        ```python
        from pipeline import finish_build

        dataset = finish_build("my-data", "vocab.txt", seq_lens=[128], passes=2)
        print(dataset.manifest.root_hash)
        ```
    """
    return run_shards(_make_settings(output, vocab, settings), beam_arguments)


def _make_settings(
    output: str | os.PathLike[str], vocab: str | os.PathLike[str], settings: Mapping[str, Any]
) -> BuildSettings:
    """Returns the settings of a build, with values checked as those of a settings file are.

    Args:
        output: Folder or URL of the dataset.
        vocab: The vocabulary.
        settings: Other settings by their names. `sources` is a list of `Source`. Their `input` may
            be empty, because the documents are in a PCollection.

    Raises:
        ValueError: A setting is unknown, or a value is of another type than the setting's.
    """
    sources = []
    for source in settings.get("sources", ()):
        if not isinstance(source, Source):
            expected = "expected pipeline.documents.source.Source(name=..., input=[])"
            raise ValueError(f"{_CALLED}: sources: found {quote(source)}, {expected}")  # noqa: TRY004
        sources.append(replace(source, input=source.input or ["-"]))
    converted: dict[str, Any] = {"sources": sources}
    hints = hints_of(BuildSettings)
    for name, value in {"output": output, "vocab": vocab, **settings}.items():
        if name not in hints:
            raise ValueError(answer_unknown(name, BuildSettings, "", f"{_CALLED}: "))
        if name != "sources":
            node = plain_node(_to_plain(value), _CALLED)
            converted[name] = convert(node, hints[name], name)
    if converted["vocab"] is None:
        raise ValueError(f"{_CALLED}: vocab: found None, expected a vocab.txt or a model with one")
    return BuildSettings(**converted)


def _to_plain(value: Any) -> Any:
    """Converts a value of Python to what a settings file would hold in its place.

    A path becomes text, and a tuple becomes a list. A mapping becomes a text of JSON, because the
    setting `storage_options` is such a text.
    """
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return json.dumps(value)
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Claim:
    """What a pipeline writes into its output first, so that no other build can use the output.

    Attributes:
        settings: The settings of `WriteTokens`.
        vocab: Bytes of vocab.txt, read when the pipeline was made.
        content: The content of settings.json in the folder of token parts.
        rule: How documents are encoded.
    """

    settings: BuildSettings
    vocab: bytes
    content: Mapping[str, Any]
    rule: TokensRule


def make_claim(settings: BuildSettings) -> Claim:
    """Reads everything that decides the content of the token parts; writes nothing.

    Raises:
        FileNotFoundError: The vocabulary or a task file does not exist.
        ValueError: The output already holds a dataset, a vocabulary or token parts that were made
            in another way, or a redacted dataset.
    """
    assert settings.vocab is not None, "WriteTokens learns no vocabulary"
    refuse_redacted(settings.open_output())
    vocabulary = read_vocabulary(settings, settings.vocab)
    content = store_settings(settings, vocabulary.sha256)
    folder = settings.open_tokens()
    is_begun = settings.open_output().exists(ORIGIN)
    if is_begun:
        prepare_vocabulary(settings, (), (), ())  # compares what is there
    # Otherwise parts of another vocabulary are no fault: they are removed when the pipeline runs.
    if is_begun or settings.tokens:
        refuse_other_settings(folder, content)
    _refuse_other_build(folder)
    rule = tokens_rule(settings, vocabulary, describe_broadcast)
    return Claim(settings, vocabulary.to_text().encode(), content, rule)


def _refuse_other_build(folder: Folder) -> None:
    """Raises ValueError if a folder of token parts holds the documents of a build from files."""
    if folder.exists(STORE) and not folder.exists(DELIVERED):
        raise ValueError(
            f"{folder.locate()} holds the documents of a build from files; give another output, or"
            " delete that folder"
        )


def claim_output(_: None, claim: Claim) -> None:
    """Writes the vocabulary and the settings into the output, unless they are there already.

    Task texts that are too large for the description of the job are written as well. No token part
    is written before this step has ended.

    Args:
        _: The single element of the PCollection that starts this step.
        claim: What to write.

    Raises:
        ValueError: The output was changed by another program after `make_claim`.
    """
    settings = claim.settings
    folder = settings.open_tokens()
    output = settings.open_output()
    _refuse_other_build(folder)
    if not output.exists(ORIGIN):
        output.write(VOCAB, claim.vocab)
    # Workers may not see the file that the settings name, but they see the output.
    prepare_vocabulary(replace(settings, vocab=output.locate(VOCAB)), (), (), ())
    claim_folder(folder, claim.content)
    task_texts = claim.rule.task_texts
    if task_texts and not task_texts.data:  # too large for the job's description
        broadcast(open_task_texts(settings), folder)


def to_document(document: str | Document, sources: Sequence[str]) -> Document:
    """Converts an element of the input to a document that names its source.

    Args:
        document: A text or a document. It must name its source if there are several sources.
        sources: Names of all sources.

    Raises:
        ValueError: The element is of another type, or its source is not in the settings.
    """
    if isinstance(document, str):
        document = Document(document)
    if not isinstance(document, Document):
        raise ValueError(  # noqa: TRY004 - a user's fault, which runners pass on
            f"a document is a {type(document).__name__}, expected str or"
            f" pipeline.documents.Document; found {reprlib.repr(document)}; convert it, or leave"
            " it out before"
        )
    for field in ("text", "where", "source"):
        value = getattr(document, field)
        if not isinstance(value, str):
            raise ValueError(  # noqa: TRY004
                f"a document's {field} is a {type(value).__name__}, expected str; found"
                f" {reprlib.repr(value)}, where is {document.where!r}; convert it, or leave it out"
                " before"
            )
    name = document.source or sources[0]
    if name not in sources or (not document.source and len(sources) > 1):
        raise ValueError(
            f"a document ({document.where or document.text[:40]!r}) is of the source"
            f" {document.source!r}, expected one of {', '.join(sources)}"
        )
    return replace(document, source=name)


def hash_document(document: Document) -> int:
    """Returns a hash of 128 bits of a document's text, place, source and `is_split`."""
    digest = hashlib.blake2b(str(document.is_split).encode(), digest_size=_HASH_BYTES)
    for text in (document.source, document.where, document.text):
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return int.from_bytes(digest.digest(), "little")


def add_hashes(hashes: Iterable[int]) -> str:
    """Returns the sum of hashes modulo 2**128 in hexadecimal. It does not depend on their order."""
    return f"{sum(hashes) % (1 << 8 * _HASH_BYTES):0{2 * _HASH_BYTES}x}"


def tally_document(document: Document) -> tuple[int, str]:
    """Returns the tally of one document: the number 1, and its hash."""
    return 1, add_hashes([hash_document(document)])


def add_tallies(tallies: Iterable[tuple[int, str]]) -> tuple[int, str]:
    """Adds up tallies: returns the number of all documents, and the sum of their hashes."""
    number = 0
    hashes = []
    for documents, digest in tallies:
        number += documents
        hashes.append(int(digest, 16))
    return number, add_hashes(hashes)


def to_lists(
    documents: Sequence[Document], sources: Sequence[str], _: None = None
) -> Iterator[DocumentList[Document]]:
    """Puts documents into one list for each source that they are from.

    The lists do not depend on the order of `documents`, because each list is sorted by the hashes
    of its documents. The sum of these hashes is the list's `part`.

    Args:
        documents: Documents as `to_document` returns them.
        sources: Names of all sources, in the order of their numbers.
        _: The result of `claim_output`. It is not used, but makes the runner wait for that step.
    """
    by_source: dict[int, list[tuple[int, Document]]] = {}
    for document in documents:
        row = (hash_document(document), document)
        by_source.setdefault(sources.index(document.source), []).append(row)
    for number, rows in sorted(by_source.items()):
        rows.sort(key=lambda row: row[0])
        digest = add_hashes(hashed for hashed, _ in rows)
        ordered = [document for _, document in rows]
        counters = {"documents_read": len(ordered)}
        yield DocumentList(digest, 0, True, ordered, counters, source=number, keeps_dropped=True)


def finish_tokens(
    records: Sequence[str], tally: tuple[int, str], folder: Folder, _: None = None
) -> Iterator[str]:
    """Checks that all token parts were written, and writes parts.json, which lists them.

    Two lists with the same documents have the same name and share one part. That loses nothing,
    because a build keeps only one copy of a document.

    Args:
        records: Names of the records that were written, one for each list.
        tally: The number of documents that the pipeline gave, and the sum of their hashes.
        folder: The folder of the token parts.
        _: The result of `claim_output`. It is not used, but makes the runner wait for that step.

    Yields:
        The names of the records of all parts, each once, in the order of the names.

    Raises:
        ValueError: The parts do not hold every document exactly once, or the folder holds the
            documents of another pipeline.
    """
    number, digest = tally
    names = sorted({*records})
    matches = [_RECORD.fullmatch(record) for record in records]
    rows = dict(zip(names, read_records(folder, names), strict=True)) if all(matches) else {}
    written = sum(rows[record]["documents_read"] for record in records if rows)
    hashes = add_hashes(int(match["digest"], 16) for match in matches if match)
    if (written, hashes) != (number, digest):
        what = "others in their place" if written == number else "each once"
        raise ValueError(
            f"{folder.url}: token parts of {written:,} documents were written, expected"
            f" {number:,}, {what}; {_ADVICE}"
        )
    delivered = Delivered(number, digest, names)
    _refuse_other_documents(folder, delivered)
    data = json_bytes(asdict(delivered))
    if not folder.exists(DELIVERED) or folder.read(DELIVERED) != data:
        folder.remove([STORE])
        folder.write(DELIVERED, data)
    yield from names


def _refuse_other_documents(folder: Folder, delivered: Delivered) -> None:
    """Raises ValueError if parts.json lists other documents than this pipeline has delivered."""
    if not folder.exists(DELIVERED):
        return
    before = read_delivered(folder)
    if (before.documents, before.digest) != (delivered.documents, delivered.digest):
        raise ValueError(
            f"{folder.locate(DELIVERED)}: another pipeline has written {before.documents:,}"
            f" documents there, which are kept; this one gave {delivered.documents:,} others."
            f" Write all documents of a dataset by one pipeline ({_ONE_WRITER}), give another"
            f" output, or delete {folder.locate()} to begin again"
        )


class ReadInstances(
    beam.PTransform[beam.pvalue.PBegin, beam.PCollection[dict[str, Any]]]  # type: ignore[misc]
):
    """Reads the instances of a dataset, as a PCollection of dicts.

    It is applied to the pipeline itself. Each instance is one dict. Token ids are integers, and no
    instance is padded:

    - `split`: "train" or "validation".
    - `seq_len`: the length that the instance was made for.
    - `pass_index`: the number of its pass, from 0.
    - `input_ids`: list of the token ids, [CLS] A [SEP] B [SEP]. Masks are already applied.
    - `segment_a_length`: number of tokens in [CLS] A [SEP], which have type 0.
    - `masked_lm_positions`: list of the positions to predict, ascending.
    - `masked_lm_ids`: list of the ids to predict at these positions.
    - `is_random_next`: `True` if B is from another document than A.
    - `document_a`, `document_b`: the first 8 bytes of the documents' ids, as integers.

    Raises:
        FileNotFoundError: When the transform is applied, there is no finished dataset.
        ValueError: When the transform is applied, the dataset has no instances of this split and
            length. While the pipeline runs, another dataset is in the folder by now, or a block is
            damaged.

    Examples:
        ```python
        import apache_beam as beam

        from pipeline import ReadInstances

        with beam.Pipeline() as pipeline:
            instances = pipeline | ReadInstances("my-data", split="train", seq_len=128)
            instances | beam.combiners.Count.Globally() | beam.Map(print)
        ```
    """

    def __init__(
        self,
        dataset: str | os.PathLike[str],
        split: str | None = None,
        seq_len: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Takes the dataset, and which of its instances to read.

        Args:
            dataset: Folder or URL of a finished dataset.
            split: "train" or "validation"; None reads both.
            seq_len: The length of the instances; None reads all lengths.
            storage_options: Options of the fsspec filesystem, such as keys of an object store. They
                are sent to the workers; of a text `${NAME}` only the name is sent, and it stands
                for that environment variable.
        """
        super().__init__()
        self._dataset = os.fspath(dataset)
        self._split = split
        self._seq_len = seq_len
        self._options = storage_options

    def display_data(self) -> dict[str, Any]:
        """Returns the dataset, which a runner shows for this transform."""
        return {"dataset": hide(self._dataset)}

    def expand(self, pipeline: beam.pvalue.PBegin) -> beam.PCollection[dict[str, Any]]:
        """Opens the dataset and adds the steps that read its shards.

        Raises:
            FileNotFoundError: There is no finished dataset.
            ValueError: The dataset has no instances of this split and length.
        """
        dataset = open_dataset(self._dataset, self._options)
        chosen = [
            shard.name
            for shard in dataset.all_shards
            if self._split in (None, shard.split) and self._seq_len in (None, shard.seq_len)
        ]
        if not chosen:
            raise ValueError(f"{dataset.url}: {self._describe_absence(dataset)}")
        read = beam.FlatMap(read_instances, dataset.folder, _identity(dataset))
        return pipeline | "Shards" >> beam.Create(chosen, reshuffle=True) | "ReadShards" >> read

    def _describe_absence(self, dataset: Dataset) -> str:
        """Returns which instances are missing in a dataset, and which it has."""
        missing = f"{self._split} instances" if self._split else "instances"
        if self._seq_len is not None:
            missing += f" of seq_len {self._seq_len!r}"
        groups = dataset.manifest.groups
        choices = ", ".join(f"{group.split} L{group.seq_len}" for group in groups)
        return f"no {missing}; the dataset has {choices}"


def read_instances(name: str, folder: Folder, identity: str) -> Iterator[dict[str, Any]]:
    """Yields the instances of a shard, in order.

    Args:
        name: The shard's name in its dataset.
        folder: The folder of the dataset.
        identity: The dataset's `_identity` when the pipeline was made.

    Raises:
        ValueError: Another dataset is in the folder by now, or a block is damaged.
    """
    dataset = _open(folder, identity)
    [shard] = [shard for shard in dataset.all_shards if shard.name == name]
    place = {"split": shard.split, "seq_len": shard.seq_len, "pass_index": shard.pass_index}
    for block in read_blocks(dataset, shard):
        yield from (place | row for row in to_record_batch(block).to_pylist())


def _identity(dataset: Dataset) -> str:
    """Returns the hash of a dataset's table of shards. It differs if any shard differs."""
    return str(dataset.manifest.sha256_of(SHARDS_TABLE))


@lru_cache(maxsize=4)
def _open(folder: Folder, identity: str) -> Dataset:
    """Opens a dataset, once per worker, and checks its identity.

    Raises:
        ValueError: The dataset was built anew since the pipeline was made.
    """
    dataset = open_dataset(folder.url, folder.options)
    if _identity(dataset) != identity:
        raise ValueError(
            f"{folder.url}: another dataset is there than when the pipeline was made; make the"
            " pipeline again"
        )
    return dataset
