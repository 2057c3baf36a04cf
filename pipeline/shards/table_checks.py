"""Whether a dataset's manifest and tables can be what they say, asked before anything of them is used.

They may come from somebody else: every name, number and count is held to what the format allows
(docs/format.md, section 3), so that none leads out of the dataset, asks for memory without end or
overflows.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from pipeline.shards.block import TOKENS_PER_BLOCK, block_instances
from pipeline.shards.records import BlockTable, Group, Manifest, Shard
from pipeline.shards.seal import Seal

SPLITS = ("train", "validation")
SPECIAL_NAMES = ("pad", "unk", "cls", "sep", "mask")
MAX_SEQ_LEN = 65_535
MAX_PASSES = 1000
MAX_BLOCK_BYTES = (
    64 * TOKENS_PER_BLOCK
)  # compressed columns of that many tokens are a twentieth of it
MAX_SHARD_BYTES = 2**36
_MIN_MEMBER_BYTES = 1024  # of a tar file: a header and what is in it, in pieces of 512 bytes
_MAX_NUMBER = 2**62
_HASH = re.compile(r"[0-9a-f]{64}")
_HALF_HASH = re.compile(r"[0-9a-f]{32}")
_DIGITS = {"sha256": 64, "content_hash": 64, "blocks_hash": 32}
"""Hashes of a shard, and how many hexadecimal digits each has."""
_SHARD_NAME = re.compile(r"shard-[0-9]{5,9}\.tar")


def check_manifest(manifest: Manifest) -> None:
    """Checks types and ranges of every field of a parsed manifest.

    Raises:
        ValueError: A field cannot be what it says; the message names it.
    """
    for name in ("settings_hash", "vocab_sha256", "root_hash", "tokenizer_sha256"):
        _check_hash(name, getattr(manifest, name))
    for name in ("software", "settings", "special_ids", "counters", "tables_sha256"):
        _expect(
            isinstance(getattr(manifest, name), Mapping), name, getattr(manifest, name), "an object"
        )
    _check_number("vocab_size", manifest.vocab_size, 1, 2**32)
    _check_seal("seal", manifest.seal)
    special = manifest.special_ids
    _expect(
        set(special) == set(SPECIAL_NAMES),
        "special_ids",
        sorted(special),
        f"the names {SPECIAL_NAMES}",
    )
    for name, value in special.items():
        _check_number(f"special_ids {name}", value, 0, manifest.vocab_size - 1)
    _expect(
        len(set(special.values())) == len(special), "special_ids", dict(special), "ids that differ"
    )
    for group in manifest.groups:
        _check_row(group, f"group {group.split} L{group.seq_len}")
        _check_number("passes of a group", group.passes, 1, MAX_PASSES)
    places = [(group.split, group.seq_len) for group in manifest.groups]
    _expect(len(set(places)) == len(places), "groups", places, "each split and length once")


def check_shards(shards: Sequence[Shard]) -> None:
    """Checks every row of shards.parquet, that none is there twice, and that no pass is left out.

    Raises:
        ValueError: A row cannot be what it says; the message names it.
    """
    check_rows(shards)
    _check_passes(shards)


def check_rows(shards: Sequence[Shard]) -> None:
    """Checks every row of some shards, and that none is there twice.

    Raises:
        ValueError: A row cannot be what it says; the message names it.
    """
    for row, shard in enumerate(shards if not _are_plausible(shards) else ()):
        where = f"row {row}"
        _check_row(shard, where)
        _check_number(f"{where}, pass", shard.pass_index, 0, MAX_PASSES - 1)
        _check_number(f"{where}, num_bytes", shard.num_bytes, 0, MAX_SHARD_BYTES)
        most = shard.num_bytes // _MIN_MEMBER_BYTES * block_instances(shard.seq_len)
        _check_number(f"{where}, instances in {shard.num_bytes} bytes", shard.instances, 0, most)
        folder, _, name = shard.name.rpartition("/")
        expected = f"{shard.split}/L{shard.seq_len}/pass-{shard.pass_index:02d}"
        is_own = folder == expected and _SHARD_NAME.fullmatch(name) is not None
        _expect(is_own, f"{where}, name", shard.name, f"{expected}/shard-NNNNN.tar")
        for field, digits in _DIGITS.items():
            value = getattr(shard, field)
            _expect(
                _are_hashes([value], digits), f"{where}, {field}", value, f"{digits} hex digits"
            )
    for seal in {
        id(shard.seal): shard.seal for shard in shards
    }.values():  # a bucket's shards share one
        _check_seal("the seal of a shard", seal)
    names = {shard.name for shard in shards}
    _expect(
        len(names) == len(shards),
        "names",
        f"{len(names)} names",
        f"one for each of {len(shards)} shards",
    )


def check_blocks(table: BlockTable, shard: Shard) -> None:
    """Checks the blocks of a shard against its row: in order, apart, inside the file, of a bounded size.

    Raises:
        ValueError: They do not describe it.
    """
    full = block_instances(shard.seq_len)
    check_range("offset", table.offset, 0, shard.num_bytes)
    check_range("size", table.size, 1, MAX_BLOCK_BYTES)
    check_range("instances", table.instances, 0, full)
    check_range("tokens", table.tokens, 0, full * shard.seq_len)
    ends = table.offset + table.size
    _expect(
        bool(np.all(table.offset[1:] >= ends[:-1])),
        "offset",
        "blocks that overlap",
        "blocks one after another",
    )
    check_range("the last byte", ends, 0, shard.num_bytes)
    sums = f"{int(table.instances.sum())} instances and {int(table.tokens.sum())} tokens"
    expected = f"{shard.instances} instances and {shard.tokens} tokens"
    _expect(sums == expected, "sums", sums, f"what the shard table says: {expected}")
    _expect(
        bool(np.all(table.instances[:-1] == full)),
        "instances",
        "a short block",
        f"{full} in every one but the last",
    )
    found = table.digest()
    _expect(
        found == shard.blocks_hash,
        "blocks_hash",
        found,
        f"{shard.blocks_hash}, as the shard table says",
    )


def check_parquet(file: pq.ParquetFile, num_bytes: int) -> None:
    """Checks what a table's own description says of its size, before its rows are read.

    Raises:
        ValueError: More rows or bytes than such a table can hold: each row has hashes or a
            checksum, which no compression makes smaller than a byte.
    """
    metadata = file.metadata
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    rows = [metadata.num_rows, *(group.num_rows for group in groups)]
    _expect(
        all(0 <= each <= num_bytes for each in rows),
        "rows",
        max(rows),
        f"at most {num_bytes}, its bytes",
    )
    # Of the columns' own descriptions nothing is asked: where one is broken, that ends the process.
    sizes = [group.total_byte_size for group in groups]
    limit = 2**16 + 64 * num_bytes
    _expect(
        all(each >= 0 for each in sizes) and sum(sizes) <= limit,
        "columns",
        f"{sum(sizes)} bytes",
        f"{limit} at most",
    )


def _check_passes(shards: Iterable[Shard]) -> None:
    """Passes of a split and length are counted from 0 without a gap."""
    passes: dict[tuple[str, int], set[int]] = {}
    for shard in shards:
        passes.setdefault((shard.split, shard.seq_len), set()).add(shard.pass_index)
    for (split, seq_len), found in passes.items():
        is_whole = found == set(range(len(found)))
        _expect(
            is_whole,
            f"passes of {split} L{seq_len}",
            sorted(found)[:9],
            "0, 1 and so on without a gap",
        )


def _are_plausible(shards: Sequence[Shard]) -> bool:
    """Whether all rows pass what `check_shards` asks of each; it does so one by one where they do not, to say why.

    80,000 rows take 0.3 seconds in here, 2 one by one.
    """
    if any(shard.source_tokens for shard in shards):
        return False
    numbers = {
        field.name: [getattr(shard, field.name) for shard in shards]
        for field in dataclasses.fields(Shard)
        if field.type in (int, "int")
    }
    if not all(type(value) is int for values in numbers.values() for value in values):
        return False
    try:
        column = {name: np.array(values, np.int64) for name, values in numbers.items()}
    except OverflowError:
        return False
    limits = {
        "seq_len": (1, MAX_SEQ_LEN),
        "pass_index": (0, MAX_PASSES - 1),
        "num_bytes": (0, MAX_SHARD_BYTES),
    }
    for name, values in column.items():
        least, most = limits.get(name, (0, _MAX_NUMBER))
        if not bool(np.all((values >= least) & (values <= most))):
            return False
    full = np.maximum(1, TOKENS_PER_BLOCK // column["seq_len"])
    if np.any(column["instances"] > column["num_bytes"] // _MIN_MEMBER_BYTES * full):
        return False
    most_tokens = [shard.instances * shard.seq_len for shard in shards]
    fits = all(shard.tokens <= most for shard, most in zip(shards, most_tokens, strict=True))
    fits = fits and bool(
        np.all(
            (column["masked"] <= column["tokens"]) & (column["random_next"] <= column["instances"])
        )
    )
    hashes = (
        ([getattr(shard, name) for shard in shards], digits) for name, digits in _DIGITS.items()
    )
    return fits and all(_are_hashes(*each) for each in hashes) and all(map(_is_named_well, shards))


def _are_hashes(values: Sequence[Any], digits: int) -> bool:
    """Whether all are hexadecimal numbers of so many digits; looked at together, in a tenth of the time."""
    if any(type(each) is not str or len(each) != digits for each in values):
        return False
    return not "".join(values).encode(errors="replace").translate(None, b"0123456789abcdef")


def _is_named_well(shard: Shard) -> bool:
    folder = f"{shard.split}/L{shard.seq_len}/pass-{shard.pass_index:02d}/"
    return (
        shard.split in SPLITS
        and isinstance(shard.name, str)
        and shard.name.startswith(folder)
        and _SHARD_NAME.fullmatch(shard.name, len(folder)) is not None
    )


def _check_row(row: "Shard | Group", where: str) -> None:
    """Types, and counts that fit one another."""
    _expect(row.split in SPLITS, f"{where}, split", row.split, f"one of {', '.join(SPLITS)}")
    for field in dataclasses.fields(row):
        value = getattr(row, field.name)
        if field.type in (str, "str"):
            _expect(isinstance(value, str), f"{where}, {field.name}", value, "text")
        elif field.name == "seal":
            _check_seal(f"{where}, seal", value)
        elif field.name == "source_tokens":
            for tokens in value:
                _check_number(f"{where}, {field.name}", tokens, 0, row.tokens)
        else:
            _check_number(f"{where}, {field.name}", value, 0, _MAX_NUMBER)
    _check_number(f"{where}, seq_len", row.seq_len, 1, MAX_SEQ_LEN)
    _check_number(f"{where}, tokens", row.tokens, 0, row.instances * row.seq_len)
    _check_number(f"{where}, masked", row.masked, 0, row.tokens)
    _check_number(f"{where}, random_next", row.random_next, 0, row.instances)


def _check_seal(name: str, seal: Seal) -> None:
    _check_number(f"{name}, documents", seal.documents, 0, _MAX_NUMBER)
    _check_number(f"{name}, tokens", seal.tokens, 0, _MAX_NUMBER)
    is_xor = isinstance(seal.ids_xor, str) and _HALF_HASH.fullmatch(seal.ids_xor) is not None
    _expect(is_xor, f"{name}, ids_xor", seal.ids_xor, "32 hex digits")


def _check_number(name: str, value: Any, least: int, most: int) -> None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    _expect(
        is_number and least <= value <= most, name, value, f"a whole number from {least} to {most}"
    )


def check_range(name: str, values: Any, least: int, most: int) -> None:
    """Checks that every value of an array is one of least to most.

    Raises:
        ValueError: One is not; the message names it.
    """
    outside = values[(values < least) | (values > most)]
    _expect(len(outside) == 0, name, outside[:1].tolist(), f"whole numbers from {least} to {most}")


def _check_hash(name: str, value: Any) -> None:
    is_hash = isinstance(value, str) and _HASH.fullmatch(value) is not None
    _expect(is_hash, name, value, "64 hex digits")


def _expect(holds: bool, name: str, found: object, expected: str) -> None:
    if not holds:
        raise ValueError(f"{name}: found {str(found)[:200]!r}, expected {expected}")
