"""Reads a whole dataset once and says what is wrong with it: every byte, checksum, count and hash of the contract."""

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from pipeline.shards.block import (
    Block,
    block_digest,
    block_instances,
    checksum,
    content_hash,
    count_block,
    decode_block,
)
from pipeline.shards.coverage import find_uncovered
from pipeline.shards.dataset import Dataset
from pipeline.shards.manifest import (
    DOCUMENT_IDS,
    MANIFEST,
    document_id_bytes,
    group_totals,
    pass_folder,
    pass_json,
)
from pipeline.shards.records import BlockTable, Shard
from pipeline.shards.seal import ID_BYTES

VOCAB, TOKENIZER = "vocab.txt", "tokenizer.json"
_ROWS_AT_ONCE = 1 << 16
CheckBlock = Callable[[Shard, Block], Iterable[str]]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: where, and what was found and expected."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def verify_dataset(
    dataset: Dataset,
    threads: int = 4,
    on_shard: Callable[[Shard], object] = lambda _: None,
    check_block: CheckBlock = lambda _shard, _block: (),
) -> list[Finding]:
    """Checks every file of a dataset, one read of each, several shards at a time.

    Args:
        dataset: Opened, so that its tables already belong to its manifest.
        threads: Shards checked at once.
        on_shard: Called after each shard, from the calling thread.
        check_block: Says what else is wrong with a block, from several threads; one whose bytes or
            counts are not the tables' is not shown to it.

    Returns:
        Everything wrong, in the shards' order; empty for a sound dataset.
    """
    findings = [*_check_pinned(dataset), *_check_counters(dataset), *_check_document_ids(dataset)]
    findings += [*_check_files(dataset), *_check_passes(dataset), *_check_coverage(dataset)]
    if group_totals(dataset.all_shards) != dataset.manifest.groups:
        findings.append(
            Finding(dataset.locate(MANIFEST), "its totals are not those of the shard table")
        )
    with ThreadPoolExecutor(threads) as pool, contextlib.ExitStack() as stack:
        checks = pool.map(
            lambda shard: list(_check_shard(dataset, shard, check_block)), dataset.all_shards
        )
        stack.callback(
            pool.shutdown, wait=False, cancel_futures=True
        )  # who interrupts waits for no more shards
        for shard, found in zip(dataset.all_shards, checks, strict=True):
            findings += found
            on_shard(shard)
    return findings


def _check_pinned(dataset: Dataset) -> Iterator[Finding]:
    """The files of which the manifest has the sha256: bits that no value depends on may be damaged too."""
    for name in (VOCAB, TOKENIZER, *dataset.manifest.tables_sha256):
        try:
            data = dataset.read_file(name)
        except FileNotFoundError:
            yield Finding(dataset.locate(name), "missing")
        except ValueError as error:
            yield Finding(dataset.locate(name), str(error).removeprefix(f"{dataset.locate(name)} "))
        else:
            if name == VOCAB:
                yield from _check_vocabulary(dataset, data)
            elif name == TOKENIZER:
                yield from _check_tokenizer(dataset, data)


def _check_vocabulary(dataset: Dataset, vocab: bytes) -> Iterator[Finding]:
    """What the manifest says of vocab.txt besides its sha256."""
    tokens, manifest = vocab.split(b"\n")[:-1], dataset.manifest
    if len(tokens) != manifest.vocab_size:
        yield Finding(
            dataset.locate(VOCAB), f"{len(tokens)} entries, the manifest says {manifest.vocab_size}"
        )
        return
    for name, number in manifest.special_ids.items():
        if tokens[number] != f"[{name.upper()}]".encode():
            found = tokens[number].decode(errors="replace")
            yield Finding(
                dataset.locate(VOCAB),
                f"id {number} is {found}, the manifest says it is [{name.upper()}]",
            )


def _check_tokenizer(dataset: Dataset, tokenizer: bytes) -> Iterator[Finding]:
    """The ids of tokenizer.json are the lines of vocab.txt."""
    try:
        vocab = dataset.read_file(VOCAB)
    except (FileNotFoundError, ValueError):  # which is a finding of its own
        return
    try:
        ids = json.loads(tokenizer)["model"]["vocab"]
    except (ValueError, KeyError, TypeError) as error:
        yield Finding(dataset.locate(TOKENIZER), f"cannot be compared with {VOCAB}: {error!r}")
        return
    if ids != {token: number for number, token in enumerate(vocab.decode().split("\n")[:-1])}:
        yield Finding(dataset.locate(TOKENIZER), f"its tokens and ids are not those of {VOCAB}")


def _check_counters(dataset: Dataset) -> Iterator[Finding]:
    """The counters say what the seal says, and those of all sources add up to the dataset's."""
    manifest = dataset.manifest
    sealed = {"documents": manifest.seal.documents, "distinct_tokens": manifest.seal.tokens}
    for name, expected in sealed.items():
        if (found := manifest.counters.get(name, expected)) != expected:
            what = f"{name}: {found} by the counters, {expected} by the seal"
            yield Finding(dataset.locate(MANIFEST), what)
    if not manifest.sources:
        return
    sums: Counter[str] = Counter()
    for source in manifest.sources:
        sums.update(source["counters"])
    for name in sorted({*sums, *manifest.counters}):
        if sums[name] != manifest.counters.get(name, 0):
            what = f"{name}: {manifest.counters.get(name, 0)} in all, {sums[name]} of its sources together"
            yield Finding(dataset.locate(MANIFEST), what)


def _check_document_ids(dataset: Dataset) -> Iterator[Finding]:
    """documents.ids, which may be deleted, holds the bytes that documents_hash covers and the documents of the seal."""
    expected = dataset.manifest.settings.get("documents_hash")
    if expected is None or not dataset.folder.exists(DOCUMENT_IDS):
        return
    digest, row_bytes = hashlib.blake2b(digest_size=32), document_id_bytes(dataset.manifest)
    size, ids_xor = dataset.folder.size(DOCUMENT_IDS), np.zeros(row_bytes, np.uint8)
    for start in range(0, size, _ROWS_AT_ONCE * row_bytes):
        stop = min(size, start + _ROWS_AT_ONCE * row_bytes)
        data = dataset.folder.read_range(DOCUMENT_IDS, start, stop)
        digest.update(data)
        rows = np.frombuffer(data, np.uint8, len(data) // row_bytes * row_bytes).reshape(
            -1, row_bytes
        )
        ids_xor ^= np.bitwise_xor.reduce(rows, axis=0)
    where, seal = dataset.locate(DOCUMENT_IDS), dataset.manifest.seal
    if digest.hexdigest() != expected:
        yield Finding(where, f"blake2b is {digest.hexdigest()}, documents_hash says {expected}")
    elif (found := (size // row_bytes, ids_xor[:ID_BYTES].tobytes().hex())) != (
        seal.documents,
        seal.ids_xor,
    ):
        yield Finding(
            where,
            f"{found[0]:,} documents (xor of ids {found[1]}), the manifest's seal is of {seal}",
        )


def _check_files(dataset: Dataset) -> Iterator[Finding]:
    """Names and content: nothing under the splits that the tables do not speak of, no shard that is another's copy."""
    names = [shard.name for shard in dataset.all_shards]
    first_of: dict[str, str] = {}
    for shard in dataset.all_shards:
        if (
            shard.instances
            and (first := first_of.setdefault(shard.content_hash, shard.name)) != shard.name
        ):
            yield Finding(
                dataset.locate(shard.name),
                f"its content is that of {first}: a copy; rebuild the dataset",
            )
    known = {*names, *(f"{_folder(shard)}/pass.json" for shard in dataset.all_shards)}
    for split in sorted({shard.split for shard in dataset.all_shards}):
        for name in (dataset.folder / split).list():
            if f"{split}/{name}" not in known:
                yield Finding(
                    dataset.locate(f"{split}/{name}"),
                    "foreign file: no table speaks of it; remove it",
                )


def _check_passes(dataset: Dataset) -> Iterator[Finding]:
    passes: dict[str, list[Shard]] = {}
    for shard in dataset.all_shards:
        passes.setdefault(_folder(shard), []).append(shard)
    for folder, shards in passes.items():
        name = f"{folder}/pass.json"
        try:
            is_own = dataset.read_file(name) == pass_json(shards, dataset.manifest.settings_hash)
        except FileNotFoundError:
            yield Finding(dataset.locate(name), "missing")
            continue
        if not is_own:
            yield Finding(
                dataset.locate(name), "does not say what the shard table and the manifest say"
            )


def _check_coverage(dataset: Dataset) -> Iterator[Finding]:
    for (seq_len, pass_index), what in find_uncovered(dataset.manifest, dataset.all_shards):
        yield Finding(dataset.locate(pass_folder("train", seq_len, pass_index)), what)


def _check_shard(dataset: Dataset, shard: Shard, check_block: CheckBlock) -> Iterator[Finding]:
    where = dataset.locate(shard.name)
    try:
        size = dataset.folder.size(shard.name)
        if size != shard.num_bytes:  # not read: it may be of any size
            yield Finding(where, f"{size} bytes, expected {shard.num_bytes}: truncated or foreign")
            return
        tar = dataset.read_file(shard.name)
        table = dataset.blocks(shard)
    except FileNotFoundError:
        yield Finding(where, "missing")
        return
    except (OSError, ValueError) as error:
        yield Finding(where, str(error))
        return
    digests: list[bytes] = []
    mask_id = dataset.manifest.special_ids["mask"]
    counts: Counter[str] = Counter()
    for number in range(len(table)):
        try:
            block = _check_block(dataset, shard, tar, table, number)
        except ValueError as error:
            yield Finding(where, str(error))
            return
        yield from (Finding(f"{where}, block {number}", what) for what in check_block(shard, block))
        digests.append(block_digest(block))
        counts.update(count_block(block, mask_id))  # unlike +, update keeps zeros
    found = content_hash(digests)
    if found != shard.content_hash:
        yield Finding(where, f"content hash is {found}, expected {shard.content_hash}")
    yield from _compare_counts(shard, counts, where)
    sha256 = hashlib.sha256(tar).hexdigest()
    if sha256 != shard.sha256:
        yield Finding(
            where, f"sha256 is {sha256}, expected {shard.sha256}: damaged outside its blocks"
        )


def _compare_counts(shard: Shard, counts: Counter[str], where: str) -> Iterator[Finding]:
    for name, count in counts.items():
        if count != getattr(shard, name):
            yield Finding(
                where, f"{name}: {count} in its blocks, {getattr(shard, name)} in the shard table"
            )
    if shard.source_tokens and sum(shard.source_tokens) != shard.tokens:
        yield Finding(
            where, f"{sum(shard.source_tokens)} tokens of all sources, expected {shard.tokens}"
        )


def _check_block(
    dataset: Dataset, shard: Shard, tar: bytes, table: BlockTable, number: int
) -> Block:
    """A block's content.

    Raises:
        ValueError: Its bytes, counts or ids are not what the tables and the format say.
    """
    where = f"block {number}"
    start, size = int(table.offset[number]), int(table.size[number])
    data = memoryview(tar)[start : start + size]
    if len(data) != size or checksum(data) != int(table.crc32[number]):
        raise ValueError(f"{where}: crc32 of bytes {start}-{start + size} is not the block table's")
    block = decode_block(data, where)
    found, expected = (
        (block.num_instances, block.num_tokens),
        (int(table.instances[number]), int(table.tokens[number])),
    )
    if found != expected:
        raise ValueError(
            f"{where}: {found[0]} instances of {found[1]} tokens, the block table says {expected[0]} of {expected[1]}"
        )
    full = block_instances(shard.seq_len)
    if number < len(table) - 1 and block.num_instances != full:
        raise ValueError(
            f"{where}: {block.num_instances} instances, every block but the last has {full}"
        )
    check_instances(block, dataset.manifest.vocab_size, shard.seq_len, where)
    return block


def check_instances(block: Block, vocab_size: int, seq_len: int, where: str) -> None:
    """Holds a block's numbers to what its dataset says; raises ValueError, which names one that cannot be."""
    lengths = np.diff(block.offsets)
    if block.num_tokens and int(block.input_ids.max()) >= vocab_size:
        raise ValueError(
            f"{where}: token id {block.input_ids.max()} is past the vocabulary of {vocab_size}"
        )
    if block.num_instances and int(lengths.max()) > seq_len:
        raise ValueError(
            f"{where}: an instance of {lengths.max()} tokens, at most {seq_len} are allowed"
        )
    limits = np.repeat(lengths, np.diff(block.masked_offsets))
    if np.any(block.masked_lm_positions >= limits):
        raise ValueError(f"{where}: a masked position is past the end of its instance")


def _folder(shard: Shard) -> str:
    return pass_folder(shard.split, shard.seq_len, shard.pass_index)
