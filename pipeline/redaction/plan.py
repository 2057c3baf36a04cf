"""Plans a redaction: which instances it leaves out, and how that changes the dataset's manifest.

Nothing is written. The document columns of the shards that can hold one of the documents are read:
one shard of each pass for a document.
"""

import dataclasses
import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.shards.block import Array, block_instances
from pipeline.shards.dataset import Dataset, read_block
from pipeline.shards.document_ids import are_among, first_64_bits, iterate_id_rows
from pipeline.shards.document_index import open_document_index
from pipeline.shards.document_list import read_document_list, refuse_unknown
from pipeline.shards.growing import PLAN
from pipeline.shards.manifest import DOCUMENT_IDS, by_pass
from pipeline.shards.records import Manifest, Shard, canonical_hash
from pipeline.shards.redactions import REDACTIONS
from pipeline.shards.seal import ID_BYTES, Seal
from pipeline.stages.describe import software_versions

_CURE_OF_A_FULL_DISK = "give a folder on a disk with more space by the variable TMPDIR"


@dataclass(frozen=True)
class RedactionPlan:
    """What a redaction takes from a dataset.

    Attributes:
        dataset: The dataset, which is not changed.
        documents: [Q] uint64, ascending. The first 64 bits of the ids of the documents.
        rows: The instances to leave out: by the name of a shard their rows, ascending int64. Only
            shards that hold one are in it; these are written anew.
        shards: The shards of the new dataset, in the order of the old ones. Seals and source_tokens
            are new in all of them. Shards in `rows` have their other old values until they are
            written.
        manifest: The manifest of the new dataset, with the groups, the root hash and the tables of
            the old one.
    """

    dataset: Dataset
    documents: Array
    rows: Mapping[str, Array]
    shards: tuple[Shard, ...]
    manifest: Manifest

    @property
    def num_instances(self) -> int:
        """Number of instances that are left out."""
        return sum(map(len, self.rows.values()))

    @property
    def rewritten(self) -> list[Shard]:
        """The shards that are written anew."""
        return [shard for shard in self.shards if shard.name in self.rows]

    @property
    def unchanged(self) -> list[Shard]:
        """The shards that are copied as they are."""
        return [shard for shard in self.shards if shard.name not in self.rows]


@dataclass(frozen=True)
class _Redacted:
    """One of the documents that are left out.

    Attributes:
        id: Its id, 16 bytes.
        source: The number of its source.
        is_held_out: Whether it belongs to the validation split.
    """

    id: bytes
    source: int
    is_held_out: bool


@dataclass(frozen=True)
class _Segments:
    """The segments A and B of the instances of a shard that are left out, S in all.

    Attributes:
        documents: [S] uint64. The first 64 bits of the id of each segment's document.
        tokens: [S] int64. The number of tokens of each segment: those of `[CLS] A [SEP]` and of
            `B [SEP]`.
    """

    documents: Array
    tokens: Array


@dataclass(frozen=True)
class _IdScan:
    """What one reading of documents.ids has found.

    Attributes:
        redacted: The rows of the documents to leave out, [R, W] uint8 as in the file.
        documents_hash: The hash of all other rows.
        last_ids: By the number of a source, the highest id in hex among its validation documents
            that stay. It is empty unless validation documents were asked for.
        sources: By the first 64 bits of an id, the number of the document's source, for the
            documents that were asked for.
    """

    redacted: Array
    documents_hash: str
    last_ids: Mapping[int, str]
    sources: Mapping[int, int]


def plan_redaction(
    dataset: Dataset, list_name: str, storage_options: Mapping[str, Any] | None = None
) -> RedactionPlan:
    """Plans to leave the documents of a list out of a dataset.

    Args:
        dataset: A dataset that has a documents.ids (`pipeline.tokens.dataset_ids.open_with_ids`).
        list_name: A file that `read_document_list` reads.
        storage_options: Options of the list's filesystem, if it is at a URL.

    Raises:
        FileNotFoundError: The list or a shard is missing.
        StorageError: The store failed in every attempt.
        ValueError: The list is malformed, or names a document that the dataset does not have; the
            dataset is being extended, was changed or is damaged; or nothing would be left of one of
            its passes.
    """
    _refuse_growing(dataset)
    listed = read_document_list(list_name, storage_options)
    refuse_unknown([dataset], listed, list_name)
    refuse_lost_shards(dataset)
    documents = np.unique(np.array(listed, np.uint64))
    rows, trained, held_out = _find_rows(dataset, documents)
    _refuse_empty_passes(dataset, rows, list_name)

    segments = _read_segments(dataset, rows) if len(dataset.manifest.sources) > 1 else {}
    validation = _validation_documents(dataset) if len(held_out) else np.empty(0, np.uint64)
    scan = _scan_ids(dataset, documents, validation, segments.values())
    redacted = list(_describe_redacted(dataset, scan, trained, held_out))
    shards = _reseal(dataset.all_shards, redacted)
    return RedactionPlan(
        dataset=dataset,
        documents=documents,
        rows=rows,
        shards=tuple(_without_tokens(shard, segments, scan.sources) for shard in shards),
        manifest=_describe(dataset, redacted, scan, sum(map(len, rows.values()))),
    )


def _refuse_growing(dataset: Dataset) -> None:
    """Raises a ValueError if a build is adding passes or lengths to the dataset."""
    if dataset.folder.exists(PLAN):
        raise ValueError(
            f"{dataset.url} is still growing: a build is at work on it ({PLAN}); wait until it has"
            " ended, or run its command again to finish it"
        )


def refuse_lost_shards(dataset: Dataset) -> None:
    """Checks that all shards are there and have the sizes that the shard table says.

    Raises:
        ValueError: A shard is missing or has another size.
    """
    sizes = dataset.folder.list()
    for shard in dataset.all_shards:
        size = sizes.get(shard.name)
        if size != shard.num_bytes:
            found = "is missing" if size is None else f"has {size:,} bytes"
            raise ValueError(
                f"{dataset.locate(shard.name)} {found}, the shard table says"
                f" {shard.num_bytes:,} bytes; restore or rebuild the dataset"
            )


def _find_rows(dataset: Dataset, documents: Array) -> tuple[dict[str, Array], Array, Array]:
    """Finds the instances that hold one of some documents.

    Args:
        dataset: The dataset.
        documents: The first 64 bits of the documents' ids.

    Returns:
        rows: By the name of a shard the rows of the instances, ascending.
        trained: The documents that train instances hold, uint64.
        held_out: The documents that validation instances hold, uint64.
    """
    rows: dict[str, Array] = {}
    by_split = dict.fromkeys(("train", "validation"), np.empty(0, np.uint64))
    with tempfile.TemporaryDirectory(prefix="beambert-index-") as folder:
        for split in sorted({group.split for group in dataset.manifest.groups}):
            index = open_document_index(dataset, split, folder, cure=_CURE_OF_A_FULL_DISK)
            found = index.find(documents)
            by_split[split] = np.unique(found.document)
            indices, starts = np.unique(found.shard, return_index=True)  # shards ascend
            rows_of_shards = np.split(found.row, starts[1:])
            for index, rows_of_shard in zip(indices.tolist(), rows_of_shards, strict=False):
                rows[dataset.all_shards[index].name] = np.unique(rows_of_shard)
    return rows, by_split["train"], by_split["validation"]


def _refuse_empty_passes(dataset: Dataset, rows: Mapping[str, Array], list_name: str) -> None:
    """Raises a ValueError if all instances of a pass are to be left out.

    Args:
        dataset: The dataset.
        rows: The rows to leave out, by the name of the shard.
        list_name: The list of documents, for the message.
    """
    for folder, shards in by_pass(dataset.all_shards).items():
        num_left = sum(shard.instances - len(rows.get(shard.name, ())) for shard in shards)
        if not num_left:
            raise ValueError(
                f"{list_name} leaves no instance in {folder} of {dataset.url}; build another"
                " dataset from text without these documents"
            )


def _read_segments(dataset: Dataset, rows: Mapping[str, Array]) -> dict[str, _Segments]:
    """Reads the documents and lengths of the segments that are left out, by the shard's name.

    Args:
        dataset: The dataset.
        rows: The rows to leave out, by the name of the shard.
    """
    segments: dict[str, _Segments] = {}
    for shard in dataset.all_shards:
        if shard.name not in rows:
            continue
        size = block_instances(shard.seq_len)
        numbers = rows[shard.name] // size
        documents: list[Array] = []
        tokens: list[Array] = []
        for number in np.unique(numbers).tolist():
            block = read_block(dataset, shard, number)
            places = rows[shard.name][numbers == number] % size
            a_length = block.segment_a_length[places].astype(np.int64)
            documents += [block.document_a[places], block.document_b[places]]
            tokens += [a_length, block.lengths[places] - a_length]
        segments[shard.name] = _Segments(np.concatenate(documents), np.concatenate(tokens))
    return segments


def _validation_documents(dataset: Dataset) -> Array:
    """Returns the documents of which validation instances begin with a segment, uint64."""
    documents = [np.empty(0, np.uint64)]
    for shard in dataset.all_shards:
        if shard.split == "validation":
            numbers = range(len(dataset.blocks(shard)))
            documents += [read_block(dataset, shard, number).document_a for number in numbers]
    return np.unique(np.concatenate(documents))


def _scan_ids(
    dataset: Dataset, documents: Array, validation: Array, segments: Iterable[_Segments]
) -> _IdScan:
    """Reads documents.ids once.

    Args:
        dataset: The dataset.
        documents: The first 64 bits of the ids of the documents to leave out, uint64.
        validation: The first 64 bits of the ids of all validation documents; empty if `last_ids` is
            not needed.
        segments: The segments whose documents' sources are asked for.

    Raises:
        ValueError: The file is not the one that the manifest's documents_hash stands for.
    """
    asked = [segments_of_shard.documents for segments_of_shard in segments]
    wanted = np.unique(np.concatenate([np.empty(0, np.uint64), *asked]))
    before = hashlib.blake2b(digest_size=32)
    after = hashlib.blake2b(digest_size=32)
    redacted: list[Array] = []
    last_ids: dict[int, str] = {}
    sources: dict[int, int] = {}
    for rows in iterate_id_rows(dataset):
        ids = first_64_bits(rows)
        is_redacted = are_among(ids, documents)
        before.update(rows.tobytes())
        after.update(rows[~is_redacted].tobytes())
        redacted.append(rows[is_redacted])
        for row in rows[~is_redacted & are_among(ids, validation)]:
            last_ids[_source_of(row)] = row[:ID_BYTES].tobytes().hex()  # ids ascend
        for place in np.flatnonzero(are_among(ids, wanted)).tolist():
            sources[int(ids[place])] = _source_of(rows[place])

    if before.hexdigest() != dataset.manifest.settings["documents_hash"]:
        raise ValueError(
            f"{dataset.locate(DOCUMENT_IDS)}: not the documents of {dataset.url}, by the"
            " documents_hash of its manifest; delete the file and run the command that built the"
            " dataset once more"
        )
    return _IdScan(np.concatenate(redacted), after.hexdigest(), last_ids, sources)


def _source_of(row: Array) -> int:
    """Returns the number of the source in a row of documents.ids; 0 if there is one source."""
    return int(row[ID_BYTES]) if len(row) > ID_BYTES else 0


def _describe_redacted(
    dataset: Dataset, scan: _IdScan, trained: Array, held_out: Array
) -> Iterator[_Redacted]:
    """Yields the documents that are left out.

    A document of which no instance is left, because an earlier redaction took them all, belongs to
    the validation split if its id is not above the last one that was held out of its source.

    Args:
        dataset: The dataset.
        scan: The result of reading documents.ids.
        trained: The documents that train instances hold, uint64.
        held_out: The documents that validation instances hold, uint64.
    """
    ids = first_64_bits(scan.redacted)
    is_trained = are_among(ids, trained)
    is_validated = are_among(ids, held_out)
    for place, row in enumerate(scan.redacted):
        source = _source_of(row)
        last_id = dataset.manifest.sources[source].get("validation", {}).get("last_id") or ""
        document_id = row[:ID_BYTES].tobytes()
        is_lost = not is_trained[place] and document_id.hex() <= last_id
        yield _Redacted(document_id, source, bool(is_validated[place]) or is_lost)


def _reseal(shards: Sequence[Shard], redacted: Sequence[_Redacted]) -> list[Shard]:
    """Returns shards with the seals of their buckets without some documents.

    The tokens of a seal stay as they are, because a dataset does not say how many tokens a document
    has (docs/format.md, Redacted datasets).

    Args:
        shards: All shards of the dataset.
        redacted: The documents.
    """
    resealed: list[Shard] = []
    num_buckets = Counter(shard.folder for shard in shards)
    buckets: dict[tuple[str, int], dict[int, list[bytes]]] = {}  # ids by split, number, bucket
    for shard in shards:
        number = num_buckets[shard.folder]
        key = (shard.split, number)
        if key not in buckets:
            buckets[key] = _deal(shard.split, number, redacted)
        bucket = int(shard.name.rpartition("-")[2].removesuffix(".tar"))
        ids = buckets[key].get(bucket, [])
        resealed.append(dataclasses.replace(shard, seal=_take_away(shard.seal, ids)))
    return resealed


def _deal(split: str, num_buckets: int, redacted: Iterable[_Redacted]) -> dict[int, list[bytes]]:
    """Returns the ids of the documents in each bucket of a split, by the number of the bucket.

    Args:
        split: "train" or "validation".
        num_buckets: The number of buckets, a power of two. A document's bucket is the first bits of
            its id.
        redacted: The documents, of both splits.
    """
    bits = num_buckets.bit_length() - 1
    dealt: dict[int, list[bytes]] = {}
    for document in redacted:
        if document.is_held_out == (split == "validation"):
            bucket = int.from_bytes(document.id, "big") >> (8 * ID_BYTES - bits)
            dealt.setdefault(bucket, []).append(document.id)
    return dealt


def _take_away(seal: Seal, ids: Sequence[bytes]) -> Seal:
    """Returns the seal of a set of documents without some of them; tokens stay as they are."""
    ids_xor = int(seal.ids_xor, 16)
    for document_id in ids:
        ids_xor ^= int.from_bytes(document_id, "big")
    return Seal(seal.documents - len(ids), seal.tokens, f"{ids_xor:032x}")


def _without_tokens(
    shard: Shard, segments: Mapping[str, _Segments], sources: Mapping[int, int]
) -> Shard:
    """Returns a shard whose source_tokens are those of the instances that stay.

    Args:
        shard: The shard.
        segments: The segments that are left out, by the name of the shard.
        sources: The number of the source of each of their documents.
    """
    if shard.name not in segments:
        return shard
    taken = segments[shard.name]
    numbers = [sources[document] for document in taken.documents.tolist()]
    of_sources = np.bincount(numbers, taken.tokens, len(shard.source_tokens)).astype(np.int64)
    left = np.array(shard.source_tokens, np.int64) - of_sources
    return dataclasses.replace(shard, source_tokens=tuple(left.tolist()))


def _describe(
    dataset: Dataset, redacted: Sequence[_Redacted], scan: _IdScan, num_instances: int
) -> Manifest:
    """Returns the manifest of the new dataset, with the groups and hashes of the old one.

    Args:
        dataset: The old dataset.
        redacted: The documents that are left out.
        scan: The result of reading documents.ids.
        num_instances: The number of instances that are left out.
    """
    old = dataset.manifest
    redaction = {
        "root_hash": old.root_hash,
        "documents": len(redacted),
        "instances": num_instances,
    }
    settings: dict[str, Any] = {
        **old.settings,
        "documents_hash": scan.documents_hash,
        REDACTIONS: [*old.settings.get(REDACTIONS, ()), redaction],
    }
    by_source: list[list[_Redacted]] = [[] for _ in old.sources]
    for document in redacted:
        by_source[document.source].append(document)
    sources = tuple(
        _describe_source(source, by_source[number], scan, number)
        for number, source in enumerate(old.sources)
    )
    return dataclasses.replace(
        old,
        software=software_versions(),
        settings=settings,
        settings_hash=canonical_hash(settings),
        counters=_count_dropped(old.counters, len(redacted)),
        seal=_take_away(old.seal, [document.id for document in redacted]),
        sources=sources,
    )


def _describe_source(
    source: Mapping[str, Any], redacted: Sequence[_Redacted], scan: _IdScan, number: int
) -> dict[str, Any]:
    """Returns a source as the new manifest describes it.

    Args:
        source: The source in the old manifest.
        redacted: The documents of the source that are left out.
        scan: The result of reading documents.ids.
        number: The number of the source.
    """
    described = {**source, "counters": _count_dropped(source["counters"], len(redacted))}
    num_held_out = sum(document.is_held_out for document in redacted)
    if num_held_out:
        validation = source["validation"]
        described["validation"] = {
            **validation,
            "documents": validation["documents"] - num_held_out,
            "last_id": scan.last_ids.get(number),
        }
    return described


def _count_dropped(counters: Mapping[str, Any], num_documents: int) -> dict[str, Any]:
    """Returns a manifest's counters after some documents were left out.

    Args:
        counters: The counters before.
        num_documents: The number of documents that are counted as dropped from now on.
    """
    counted = dict(counters)
    counted["documents"] -= num_documents
    counted["dropped_redacted"] = counted.get("dropped_redacted", 0) + num_documents
    return counted
