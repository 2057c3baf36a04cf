"""Reads a whole dataset once and says what is wrong with it: every byte, count and hash of it.

A pass is the train shards of one length and pass, and the validation shards of that length, which
every pass shares: their seals add up to that of the dataset.
"""

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np

from pipeline.shards.block import (
    Block,
    block_digest,
    checksum,
    content_hash,
    count_block,
)
from pipeline.shards.dataset import Dataset
from pipeline.shards.manifest import (
    DOCUMENT_IDS,
    MANIFEST,
    by_pass,
    document_id_bytes,
    group_totals,
    pass_folder,
    pass_json,
)
from pipeline.shards.records import BlockTable, Manifest, Shard
from pipeline.shards.seal import ID_BYTES, NOTHING, Seal
from pipeline.shards.unpack import unpack_block
from pipeline.storage.faults import DAMAGE_ATTEMPTS, StorageError, reread_damaged

VOCAB, TOKENIZER = "vocab.txt", "tokenizer.json"
_ROWS_AT_ONCE = 1 << 16
CheckBlock = Callable[[Shard, Block], Iterable[str]]


class Finding(NamedTuple):
    """One thing that is wrong: where, and what was found and expected."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


Place = tuple[int, int]
"""seq_len and pass_index."""


def pass_seals(shards: Iterable[Shard]) -> dict[Place, Seal]:
    """What the shards of each pass of each length hold, in both splits."""
    held_out: dict[int, Seal] = {}
    trained: dict[Place, Seal] = {}
    for shard in shards:
        if shard.split == "train":
            place = shard.seq_len, shard.pass_index
            trained[place] = trained.get(place, NOTHING) + shard.seal
        else:
            held_out[shard.seq_len] = held_out.get(shard.seq_len, NOTHING) + shard.seal
    places = sorted(trained.keys() | {(seq_len, 0) for seq_len in held_out})
    return {
        place: trained.get(place, NOTHING) + held_out.get(place[0], NOTHING) for place in places
    }


def find_uncovered(manifest: Manifest, shards: Sequence[Shard]) -> Iterator[tuple[Place, str]]:
    """Passes whose buckets do not hold every document once, and what they hold instead."""
    for place, found in pass_seals(shards).items():
        if found != manifest.seal:
            held = f"its shards and those of validation hold {found}"
            said = f"the manifest says {manifest.seal}"
            lost = "a document is in no bucket of this pass, or in several"
            yield place, f"{held}, {said}: {lost}"


def describe_coverage(manifest: Manifest, shards: Sequence[Shard]) -> str:
    """One sentence for people on a dataset in which no pass is uncovered."""
    lengths = Counter(seq_len for seq_len, _ in pass_seals(shards))
    passes = " and ".join(
        f"{number} pass(es) at length {seq_len}" for seq_len, number in sorted(lengths.items())
    )
    number, where = f"{manifest.seal.documents:,}", f"in exactly one bucket of each of {passes}"
    is_weighted = any(source["weight"] != 1 for source in manifest.sources)
    weights = "; how often a pass uses it, the weight of its source says" if is_weighted else ""
    return f"every one of {number} documents is {where}{weights}"


def verify_dataset(
    dataset: Dataset,
    threads: int = 4,
    on_shard: Callable[[Shard], object] = lambda _: None,
    check_block: CheckBlock = lambda _shard, _block: (),
) -> list[Finding]:
    """Returns everything that is wrong with a dataset, in the order of its shards.

    Each file is read once. On a store, a file that seems to be missing or damaged is read again.

    Args:
        dataset: An open dataset, whose tables have therefore been checked against its manifest.
        threads: The number of shards that are checked at once.
        on_shard: Called after each shard, from the calling thread.
        check_block: Finds more faults of a block; called from several threads. It is not called for
            blocks whose bytes or counts already differ from the tables.
    """
    findings = [*_check_pinned(dataset), *_check_counters(dataset), *_check_document_ids(dataset)]
    findings += [*_check_files(dataset), *_check_passes(dataset)]

    def check(shard: Shard) -> list[Finding]:
        return list(_check_shard(dataset, shard, check_block))

    with ThreadPoolExecutor(threads) as pool, contextlib.ExitStack() as stack:
        checks = pool.map(check, dataset.all_shards)
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)  # where it is interrupted
        for shard, found in zip(dataset.all_shards, checks, strict=True):
            findings += found
            on_shard(shard)
    return findings


def _check_pinned(dataset: Dataset) -> Iterator[Finding]:
    """The files of which the manifest has the sha256, and what else it says of the vocabulary."""
    read: dict[str, bytes] = {}
    for name in (VOCAB, TOKENIZER, *dataset.manifest.tables_sha256):
        where = dataset.locate(name)
        try:
            read[name] = dataset.read_file(name)
        except StorageError:
            raise
        except FileNotFoundError:
            yield Finding(where, "missing")
        except ValueError as error:
            yield Finding(where, str(error).removeprefix(f"{where} "))
    if VOCAB in read:
        tokens = read[VOCAB].decode(errors="replace").split("\n")[:-1]
        yield from _check_vocabulary(dataset, tokens)
        if TOKENIZER in read:
            yield from _check_tokenizer(dataset, read[TOKENIZER], tokens)


def _check_vocabulary(dataset: Dataset, tokens: Sequence[str]) -> Iterator[Finding]:
    """What the manifest says of vocab.txt besides its sha256."""
    where, manifest = dataset.locate(VOCAB), dataset.manifest
    if len(tokens) != manifest.vocab_size:
        yield Finding(where, f"{len(tokens)} entries, the manifest says {manifest.vocab_size}")
        return
    for name, number in manifest.special_ids.items():
        if (found := tokens[number]) != (said := f"[{name.upper()}]"):
            yield Finding(where, f"id {number} is {found}, the manifest says it is {said}")


def _check_tokenizer(
    dataset: Dataset, tokenizer: bytes, tokens: Sequence[str]
) -> Iterator[Finding]:
    """The ids of tokenizer.json are the lines of vocab.txt."""
    where = dataset.locate(TOKENIZER)
    try:
        ids = json.loads(tokenizer)["model"]["vocab"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        yield Finding(where, f"cannot be compared with {VOCAB}: {error!r}")
        return
    if ids != {token: number for number, token in enumerate(tokens)}:
        yield Finding(where, f"its tokens and ids are not those of {VOCAB}")


def _check_counters(dataset: Dataset) -> Iterator[Finding]:
    """Counters are the seal's, those of all sources add up, and totals are those of the shards."""
    where, manifest = dataset.locate(MANIFEST), dataset.manifest
    if group_totals(dataset.all_shards) != manifest.groups:
        yield Finding(where, "its totals are not those of the shard table")
    sealed = {"documents": manifest.seal.documents, "distinct_tokens": manifest.seal.tokens}
    for name, expected in sealed.items():
        if (found := manifest.counters.get(name, expected)) != expected:
            yield Finding(where, f"{name}: {found} by the counters, {expected} by the seal")
    if not manifest.sources:
        return
    sums: Counter[str] = Counter()
    for source in manifest.sources:
        sums.update(source["counters"])
    for name in sorted({*sums, *manifest.counters}):
        if sums[name] != (found := manifest.counters.get(name, 0)):
            yield Finding(where, f"{name}: {found} in all, {sums[name]} of its sources together")


def _check_document_ids(dataset: Dataset) -> Iterator[Finding]:
    """Compares documents.ids with the manifest's documents_hash and seal."""
    expected = dataset.manifest.settings.get("documents_hash")
    if expected is None:
        return
    if not _is_there(dataset, DOCUMENT_IDS):
        cure = "run the command that built the dataset once more, which writes it"
        yield Finding(dataset.locate(DOCUMENT_IDS), f"missing; {cure}")
        return
    where, seal = dataset.locate(DOCUMENT_IDS), dataset.manifest.seal

    def read() -> tuple[int, str]:
        digest, number, ids_xor = _read_document_ids(dataset)
        if digest != expected:
            raise ValueError(f"blake2b is {digest}, documents_hash says {expected}")
        return number, ids_xor

    try:
        number, found = reread_damaged(read, is_local=dataset.is_local, is_expected=True)
    except StorageError:
        raise
    except ValueError as error:
        yield Finding(where, str(error))
        return
    if (number, found) != (seal.documents, seal.ids_xor):
        said = f"{number:,} documents (xor of ids {found})"
        yield Finding(where, f"{said}, the manifest's seal is of {seal}")


def _is_there(dataset: Dataset, name: str) -> bool:
    """Returns whether a file exists; on a store only repeated absence counts as absence."""
    attempts = 1 if dataset.is_local else DAMAGE_ATTEMPTS
    return any(dataset.folder.exists(name) for _ in range(attempts))


def _read_document_ids(dataset: Dataset) -> tuple[str, int, str]:
    """Returns the digest of documents.ids, the number of ids, and the xor of all ids in hex."""
    digest, row_bytes = hashlib.blake2b(digest_size=32), document_id_bytes(dataset.manifest)
    size, ids_xor = dataset.folder.size(DOCUMENT_IDS), np.zeros(row_bytes, np.uint8)
    for start in range(0, size, _ROWS_AT_ONCE * row_bytes):
        stop = min(size, start + _ROWS_AT_ONCE * row_bytes)
        data = dataset.folder.read_range(DOCUMENT_IDS, start, stop)
        digest.update(data)
        rows = np.frombuffer(data, np.uint8, len(data) // row_bytes * row_bytes)
        ids_xor ^= np.bitwise_xor.reduce(rows.reshape(-1, row_bytes), axis=0)
    return digest.hexdigest(), size // row_bytes, ids_xor[:ID_BYTES].tobytes().hex()


def _check_files(dataset: Dataset) -> Iterator[Finding]:
    """No file under the splits that no table speaks of, and no shard that is another's copy."""
    known, first_of = set[str](), dict[str, str]()
    for shard in dataset.all_shards:
        known |= {shard.name, f"{shard.folder}/pass.json"}
        first = first_of.setdefault(shard.content_hash, shard.name)
        if shard.instances and first != shard.name:
            what = f"its content is that of {first}: a copy; rebuild the dataset"
            yield Finding(dataset.locate(shard.name), what)
    for split in sorted({shard.split for shard in dataset.all_shards}):
        for name in (dataset.folder / split).list():
            if (own := f"{split}/{name}") not in known:
                what = "foreign file: no table speaks of it; remove it"
                yield Finding(dataset.locate(own), what)


def _check_passes(dataset: Dataset) -> Iterator[Finding]:
    for folder, shards in by_pass(dataset.all_shards).items():
        name, expected = f"{folder}/pass.json", pass_json(shards, dataset.manifest.settings_hash)
        read = partial(_read_pass, dataset, name, expected)
        try:
            reread_damaged(read, is_local=dataset.is_local, is_expected=True)
        except StorageError:
            raise
        except FileNotFoundError:
            yield Finding(dataset.locate(name), "missing")
        except ValueError as error:
            yield Finding(dataset.locate(name), str(error))
    for (seq_len, pass_index), what in find_uncovered(dataset.manifest, dataset.all_shards):
        yield Finding(dataset.locate(pass_folder("train", seq_len, pass_index)), what)


def _read_pass(dataset: Dataset, name: str, expected: bytes) -> None:
    """Compares a pass.json with its expected bytes.

    Raises:
        ValueError: The bytes differ.
    """
    if dataset.read_file(name) != expected:
        raise ValueError("does not say what the shard table and the manifest say")


class _OtherBytesError(ValueError):
    """A shard has another sha256 than the table says. Its bytes are kept, to find the damage."""

    def __init__(self, tar: bytes) -> None:
        super().__init__("its sha256 is another")
        self.tar = tar


def _read_shard(dataset: Dataset, shard: Shard) -> bytes:
    """Returns a shard's bytes. They may be damaged, if every attempt read another sha256.

    Raises:
        FileNotFoundError: The shard is missing.
        ValueError: It has another size than the table says.
    """

    def read() -> bytes:
        size = dataset.folder.size(shard.name)
        if size != shard.num_bytes:  # not read: it may be of any size
            found = f"{size} bytes, expected {shard.num_bytes}"
            raise ValueError(f"{found}: truncated or foreign")
        tar = dataset.folder.read_range(shard.name, 0, size)
        if hashlib.sha256(tar).hexdigest() != shard.sha256:
            raise _OtherBytesError(tar)
        return tar

    try:
        return reread_damaged(read, is_local=dataset.is_local, is_expected=True)
    except _OtherBytesError as error:
        return error.tar


def _check_shard(dataset: Dataset, shard: Shard, check_block: CheckBlock) -> Iterator[Finding]:
    where = dataset.locate(shard.name)
    try:
        tar = _read_shard(dataset, shard)
        table = dataset.blocks(shard)
    except StorageError:  # which says nothing of the shard
        raise
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
    hashes = content_hash(digests), hashlib.sha256(tar).hexdigest()
    yield from (Finding(where, what) for what in _compare(shard, counts, *hashes))


def _compare(shard: Shard, counts: Counter[str], content: str, sha256: str) -> Iterator[str]:
    """What a shard holds in all, beside its row."""
    if content != shard.content_hash:
        yield f"content hash is {content}, expected {shard.content_hash}"
    for name, count in counts.items():
        if count != (said := getattr(shard, name)):
            yield f"{name}: {count} in its blocks, {said} in the shard table"
    if shard.source_tokens and (found := sum(shard.source_tokens)) != shard.tokens:
        yield f"{found} tokens of all sources, expected {shard.tokens}"
    if sha256 != shard.sha256:
        yield f"sha256 is {sha256}, expected {shard.sha256}: damaged outside its blocks"


def _check_block(
    dataset: Dataset, shard: Shard, tar: bytes, table: BlockTable, number: int
) -> Block:
    """A block; a ValueError where its bytes, counts or ids are not what the tables say."""
    where = f"block {number}"
    start, size = int(table.offset[number]), int(table.size[number])
    data = memoryview(tar)[start : start + size]
    if len(data) != size or checksum(data) != int(table.crc32[number]):
        raise ValueError(f"{where}: crc32 of bytes {start}-{start + size} is not the block table's")
    return unpack_block(data, table, number, shard, dataset.manifest.vocab_size, where)
