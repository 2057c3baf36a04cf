"""Verifies a dataset: reads all of its files once, and checks every byte, count and hash.

A seal is the number of some documents, the number of their tokens, and the exclusive or of their
ids (pipeline.shards.seal). Every document belongs either to one train shard of each pass or to a
validation shard. So for each pass, the seals of its train shards and of the validation shards of
its sequence length must add up to the seal of the dataset (docs/format.md, section 3).

```python
from pipeline import open_dataset, verify_dataset

for finding in verify_dataset(open_dataset("data")):
    print(finding)
```
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

VOCAB = "vocab.txt"
TOKENIZER = "tokenizer.json"
_ROWS_AT_ONCE = 1 << 16

CheckBlock = Callable[[Shard, Block], Iterable[str]]
"""`check(shard, block)` yields a message for each fault of a block."""


class Finding(NamedTuple):
    """One fault of a dataset.

    Attributes:
        where: URL of the file, with the number of the block if the fault is in a block.
        what: What was found, and what was expected.
    """

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


Place = tuple[int, int]
"""The seq_len and the pass_index of a pass."""


def pass_seals(shards: Iterable[Shard]) -> dict[Place, Seal]:
    """Returns the seal of the documents of each pass.

    It is the sum of the seals of the train shards of the pass and of the validation shards of the
    same length.

    Returns:
        A mapping from (seq_len, pass_index) to the seal, in ascending order. If a length has
            validation shards only, it has a pass 0 with the seal of these.
    """
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
    """Yields each pass whose seal shows that it lacks a document of the dataset, or has one twice.

    Args:
        manifest: The manifest of the dataset.
        shards: All shards of the dataset.

    Yields:
        (seq_len, pass_index) of the pass, and a message with both seals.
    """
    for place, seal in pass_seals(shards).items():
        if seal != manifest.seal:
            yield (
                place,
                f"its shards and those of validation hold {seal}, the manifest says"
                f" {manifest.seal}: a document is in no bucket of this pass, or in several",
            )


def describe_coverage(manifest: Manifest, shards: Sequence[Shard]) -> str:
    """Returns a sentence for the user: every document is in exactly one bucket of each pass.

    This is not checked here. Call `find_uncovered` first: the sentence is true only if that yields
    nothing.
    """
    lengths = Counter(seq_len for seq_len, _ in pass_seals(shards))
    passes = " and ".join(
        f"{number} pass(es) at length {seq_len}" for seq_len, number in sorted(lengths.items())
    )
    is_weighted = any(source["weight"] != 1 for source in manifest.sources)
    weights = "; how often a pass uses it, the weight of its source says" if is_weighted else ""
    return (
        f"every one of {manifest.seal.documents:,} documents is in exactly one bucket of each of"
        f" {passes}{weights}"
    )


def verify_dataset(
    dataset: Dataset,
    threads: int = 4,
    on_shard: Callable[[Shard], object] = lambda _: None,
    check_block: CheckBlock = lambda _shard, _block: (),
) -> list[Finding]:
    """Returns all faults of a dataset, in the order of its shards; an empty list if it is sound.

    Each file is read once. On a store, a file that seems to be missing or damaged is read again.

    Args:
        dataset: An open dataset. Opening it has checked its tables against its manifest.
        threads: The number of shards that are checked at once.
        on_shard: Called after each shard, from the calling thread, in the order of the shards.
        check_block: Finds more faults of a block; called from several threads. It is not called for
            blocks whose bytes or counts already differ from the tables.

    Raises:
        StorageError: The store failed in every attempt, so nothing is known of a file.

    Example:
        ```python
        from pipeline import open_dataset, verify_dataset

        for finding in verify_dataset(open_dataset("data")):
            print(f"{finding.where}: {finding.what}")
        ```
    """
    findings = [*_check_pinned(dataset), *_check_counters(dataset), *_check_document_ids(dataset)]
    findings += [*_check_files(dataset), *_check_passes(dataset)]

    def check(shard: Shard) -> list[Finding]:
        return list(_check_shard(dataset, shard, check_block))

    with ThreadPoolExecutor(threads) as pool, contextlib.ExitStack() as stack:
        checks = pool.map(check, dataset.all_shards)
        # If verification is interrupted, shards that have not begun are not checked any more.
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        for shard, faults in zip(dataset.all_shards, checks, strict=True):
            findings += faults
            on_shard(shard)
    return findings


def _check_pinned(dataset: Dataset) -> Iterator[Finding]:
    """Checks vocab.txt, tokenizer.json and the tables against the manifest, which has their sha256.

    Also checks that the size and the special tokens of the vocabulary are those of the manifest,
    and that tokenizer.json has the same tokens and ids.
    """
    contents: dict[str, bytes] = {}
    for name in (VOCAB, TOKENIZER, *dataset.manifest.tables_sha256):
        where = dataset.locate(name)
        try:
            contents[name] = dataset.read_file(name)
        except StorageError:
            raise
        except FileNotFoundError:
            yield Finding(where, "missing")
        except ValueError as error:
            yield Finding(where, str(error).removeprefix(f"{where} "))
    if VOCAB in contents:
        tokens = contents[VOCAB].decode(errors="replace").split("\n")[:-1]
        yield from _check_vocabulary(dataset, tokens)
        if TOKENIZER in contents:
            yield from _check_tokenizer(dataset, contents[TOKENIZER], tokens)


def _check_vocabulary(dataset: Dataset, tokens: Sequence[str]) -> Iterator[Finding]:
    """Checks the size of the vocabulary, and the special tokens, against the manifest."""
    where = dataset.locate(VOCAB)
    manifest = dataset.manifest
    if len(tokens) != manifest.vocab_size:
        yield Finding(where, f"{len(tokens)} entries, the manifest says {manifest.vocab_size}")
        return
    for name, number in manifest.special_ids.items():
        token = tokens[number]
        expected = f"[{name.upper()}]"
        if token != expected:
            yield Finding(where, f"id {number} is {token}, the manifest says it is {expected}")


def _check_tokenizer(
    dataset: Dataset, tokenizer: bytes, tokens: Sequence[str]
) -> Iterator[Finding]:
    """Checks that the ids in tokenizer.json are the line numbers of vocab.txt."""
    where = dataset.locate(TOKENIZER)
    try:
        ids = json.loads(tokenizer)["model"]["vocab"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        yield Finding(where, f"cannot be compared with {VOCAB}: {error!r}")
        return
    if ids != {token: number for number, token in enumerate(tokens)}:
        yield Finding(where, f"its tokens and ids are not those of {VOCAB}")


def _check_counters(dataset: Dataset) -> Iterator[Finding]:
    """Checks that the manifest's totals, seal and counters agree with the shards and each other."""
    where = dataset.locate(MANIFEST)
    manifest = dataset.manifest
    if group_totals(dataset.all_shards) != manifest.groups:
        yield Finding(where, "its totals are not those of the shard table")
    sealed = {"documents": manifest.seal.documents, "distinct_tokens": manifest.seal.tokens}
    for name, expected in sealed.items():
        count = manifest.counters.get(name, expected)
        if count != expected:
            yield Finding(where, f"{name}: {count} by the counters, {expected} by the seal")

    if not manifest.sources:
        return
    sums: Counter[str] = Counter()
    for source in manifest.sources:
        sums.update(source["counters"])
    for name in sorted({*sums, *manifest.counters}):
        total = manifest.counters.get(name, 0)
        if sums[name] != total:
            yield Finding(where, f"{name}: {total} in all, {sums[name]} of its sources together")


def _check_document_ids(dataset: Dataset) -> Iterator[Finding]:
    """Checks documents.ids against the manifest's documents_hash and seal."""
    expected = dataset.manifest.settings.get("documents_hash")
    if expected is None:
        return
    if not _is_there(dataset, DOCUMENT_IDS):
        cure = "run the command that built the dataset once more, which writes it"
        yield Finding(dataset.locate(DOCUMENT_IDS), f"missing; {cure}")
        return
    where = dataset.locate(DOCUMENT_IDS)
    seal = dataset.manifest.seal

    def read() -> tuple[int, str]:
        digest, number, ids_xor = _read_document_ids(dataset)
        if digest != expected:
            raise ValueError(f"blake2b is {digest}, documents_hash says {expected}")
        return number, ids_xor

    try:
        number, ids_xor = reread_damaged(read, is_local=dataset.is_local, is_expected=True)
    except StorageError:
        raise
    except ValueError as error:
        yield Finding(where, str(error))
        return
    if (number, ids_xor) != (seal.documents, seal.ids_xor):
        held = f"{number:,} documents (xor of ids {ids_xor})"
        yield Finding(where, f"{held}, the manifest's seal is of {seal}")


def _is_there(dataset: Dataset, name: str) -> bool:
    """Returns whether a file exists; on a store only repeated absence counts as absence."""
    attempts = 1 if dataset.is_local else DAMAGE_ATTEMPTS
    return any(dataset.folder.exists(name) for _ in range(attempts))


def _read_document_ids(dataset: Dataset) -> tuple[str, int, str]:
    """Reads documents.ids, some rows at a time.

    Returns:
        digest: blake2b-256 of the whole file, in hex.
        number: The number of ids.
        ids_xor: The exclusive or of all ids, in hex.
    """
    digest = hashlib.blake2b(digest_size=32)
    row_bytes = document_id_bytes(dataset.manifest)
    size = dataset.folder.size(DOCUMENT_IDS)
    ids_xor = np.zeros(row_bytes, np.uint8)
    for start in range(0, size, _ROWS_AT_ONCE * row_bytes):
        stop = min(size, start + _ROWS_AT_ONCE * row_bytes)
        data = dataset.folder.read_range(DOCUMENT_IDS, start, stop)
        digest.update(data)
        rows = np.frombuffer(data, np.uint8, len(data) // row_bytes * row_bytes)
        ids_xor ^= np.bitwise_xor.reduce(rows.reshape(-1, row_bytes), axis=0)
    return digest.hexdigest(), size // row_bytes, ids_xor[:ID_BYTES].tobytes().hex()


def _check_files(dataset: Dataset) -> Iterator[Finding]:
    """Finds files in the splits' folders that no table lists, and shards with equal content."""
    known: set[str] = set()
    first_of: dict[str, str] = {}  # name of the first shard with a content hash
    for shard in dataset.all_shards:
        known |= {shard.name, f"{shard.folder}/pass.json"}
        first = first_of.setdefault(shard.content_hash, shard.name)
        if shard.instances and first != shard.name:
            what = f"its content is that of {first}: a copy; rebuild the dataset"
            yield Finding(dataset.locate(shard.name), what)
    for split in sorted({shard.split for shard in dataset.all_shards}):
        for name in (dataset.folder / split).list():
            path = f"{split}/{name}"
            if path not in known:
                what = "foreign file: no table speaks of it; remove it"
                yield Finding(dataset.locate(path), what)


def _check_passes(dataset: Dataset) -> Iterator[Finding]:
    """Checks every pass.json, and that each pass holds all documents."""
    for folder, shards in by_pass(dataset.all_shards).items():
        name = f"{folder}/pass.json"
        expected = pass_json(shards, dataset.manifest.settings_hash)
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
    """A shard has another sha256 than the shard table says.

    Attributes:
        tar: The bytes of the shard, in which the damage is then looked for.
    """

    def __init__(self, tar: bytes) -> None:
        """Keeps the bytes of the damaged shard."""
        super().__init__("its sha256 is another")
        self.tar = tar


def _read_shard(dataset: Dataset, shard: Shard) -> bytes:
    """Returns the bytes of a shard.

    On a store, the shard is read again if its sha256 is not that of the shard table. If every
    attempt reads a wrong sha256, the damaged bytes are returned, so that the caller can find out
    which block is damaged.

    Raises:
        FileNotFoundError: The shard is missing.
        StorageError: The store failed in every attempt.
        ValueError: The shard has another size than the table says.
    """

    def read() -> bytes:
        size = dataset.folder.size(shard.name)
        if size != shard.num_bytes:  # the file is not read, as it may be of any size
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
    """Checks a shard's file, each of its blocks, and its totals.

    Stops at the first block that differs from the tables.

    Args:
        dataset: The dataset.
        shard: One of its shards.
        check_block: Finds more faults of a sound block.

    Raises:
        StorageError: The store failed in every attempt.
    """
    where = dataset.locate(shard.name)
    try:
        tar = _read_shard(dataset, shard)
        table = dataset.blocks(shard)
    except StorageError:  # says nothing about the shard
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
        for what in check_block(shard, block):
            yield Finding(f"{where}, block {number}", what)
        digests.append(block_digest(block))
        counts.update(count_block(block, mask_id))  # unlike +, update keeps zeros

    sha256 = hashlib.sha256(tar).hexdigest()
    for what in _compare(shard, counts, content_hash(digests), sha256):
        yield Finding(where, what)


def _compare(shard: Shard, counts: Counter[str], content: str, sha256: str) -> Iterator[str]:
    """Yields a message for each total of a shard's blocks that is not the shard table's.

    Args:
        shard: The shard's row of the table.
        counts: The sums of `count_block` over all blocks.
        content: The content hash of all blocks.
        sha256: The sha256 of the tar file.
    """
    if content != shard.content_hash:
        yield f"content hash is {content}, expected {shard.content_hash}"
    for name, count in counts.items():
        expected = getattr(shard, name)
        if count != expected:
            yield f"{name}: {count} in its blocks, {expected} in the shard table"
    source_tokens = sum(shard.source_tokens)
    if shard.source_tokens and source_tokens != shard.tokens:
        yield f"{source_tokens} tokens of all sources, expected {shard.tokens}"
    if sha256 != shard.sha256:
        yield f"sha256 is {sha256}, expected {shard.sha256}: damaged outside its blocks"


def _check_block(
    dataset: Dataset, shard: Shard, tar: bytes, table: BlockTable, number: int
) -> Block:
    """Returns a block of a shard's tar, after checking it against the tables and the vocabulary.

    Raises:
        ValueError: The block's bytes, counts or ids are not what the tables say.
    """
    where = f"block {number}"
    start = int(table.offset[number])
    size = int(table.size[number])
    data = memoryview(tar)[start : start + size]
    if len(data) != size or checksum(data) != int(table.crc32[number]):
        raise ValueError(f"{where}: crc32 of bytes {start}-{start + size} is not the block table's")
    return unpack_block(data, table, number, shard, dataset.manifest, where)
