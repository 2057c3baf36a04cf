"""Checks that every value in a dataset's manifest and tables is possible, before any is used.

A dataset may come from somebody else. So every name, number and count is checked against what the
format allows (docs/format.md, section 3): none may lead out of the dataset's folder, ask for
unlimited memory, or overflow. Every check raises a ValueError that names the value, and says what
was found and what was expected.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
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
MAX_BLOCK_BYTES = 64 * TOKENS_PER_BLOCK  # 20 times what compressed columns usually take
MAX_SHARD_BYTES = 2**36
_MIN_MEMBER_BYTES = 1024  # of a tar: a header of 512 bytes, and data in units of 512 bytes
_MAX_NUMBER = 2**62
_SHARD_NAME = re.compile(r"shard-[0-9]{5,9}\.tar")


def check_manifest(manifest: Manifest) -> None:
    """Checks types and ranges of all fields of a parsed manifest.

    Raises:
        ValueError: A field has an impossible value.
    """
    for name in ("settings_hash", "vocab_sha256", "root_hash", "tokenizer_sha256"):
        _check_hash(name, getattr(manifest, name))
    for name in ("software", "settings", "special_ids", "counters", "tables_sha256"):
        value = getattr(manifest, name)
        _expect(isinstance(value, Mapping), name, value, "an object")
    _check_number("vocab_size", manifest.vocab_size, 1, 2**32)
    _check_seal("seal", manifest.seal)
    special = manifest.special_ids
    has_all = set(special) == set(SPECIAL_NAMES)
    _expect(has_all, "special_ids", sorted(special), f"the names {SPECIAL_NAMES}")
    for name, value in special.items():
        _check_number(f"special_ids {name}", value, 0, manifest.vocab_size - 1)
    are_distinct = len(set(special.values())) == len(special)
    _expect(are_distinct, "special_ids", dict(special), "ids that differ")
    for group in manifest.groups:
        _check_row(group, f"group {group.split} L{group.seq_len}")
        _check_number("passes of a group", group.passes, 1, MAX_PASSES)
    places = [(group.split, group.seq_len) for group in manifest.groups]
    _expect(len(set(places)) == len(places), "groups", places, "each split and length once")


def check_shards(shards: Sequence[Shard]) -> None:
    """Checks all rows of shards.parquet, and that passes are numbered without a gap.

    Raises:
        ValueError: A row has impossible values, or the number of a pass is missing.
    """
    check_rows(shards)
    passes: dict[tuple[str, int], set[int]] = {}
    for shard in shards:
        passes.setdefault((shard.split, shard.seq_len), set()).add(shard.pass_index)
    for (split, seq_len), numbers in passes.items():
        name = f"passes of {split} L{seq_len}"
        expected = "0, 1 and so on without a gap"
        _expect(numbers == set(range(len(numbers))), name, sorted(numbers)[:9], expected)


def check_rows(shards: Sequence[Shard]) -> None:
    """Checks the rows of some shards, and that no two have the same name.

    Raises:
        ValueError: A row has impossible values, or two rows have the same name.
    """
    for row, shard in enumerate(shards):
        where = f"row {row}"
        _check_row(shard, where)
        _check_number(f"{where}, pass", shard.pass_index, 0, MAX_PASSES - 1)
        _check_number(f"{where}, num_bytes", shard.num_bytes, 0, MAX_SHARD_BYTES)
        most = shard.num_bytes // _MIN_MEMBER_BYTES * block_instances(shard.seq_len)
        _check_number(f"{where}, instances in {shard.num_bytes} bytes", shard.instances, 0, most)
        folder, _, name = shard.name.rpartition("/")
        expected = f"{shard.split}/L{shard.seq_len}/pass-{shard.pass_index:02d}"
        is_right = folder == expected and _SHARD_NAME.fullmatch(name) is not None
        _expect(is_right, f"{where}, name", shard.name, f"{expected}/shard-NNNNN.tar")
        for field, digits in (("sha256", 64), ("content_hash", 64), ("blocks_hash", 32)):
            _check_hash(f"{where}, {field}", getattr(shard, field), digits)
        _check_seal("the seal of a shard", shard.seal)
    num_names = len({shard.name for shard in shards})
    expected = f"one for each of {len(shards)} shards"
    _expect(num_names == len(shards), "names", f"{num_names} names", expected)


def check_blocks(table: BlockTable, shard: Shard) -> None:
    """Checks a shard's block table against the shard's row.

    Blocks must be in order, inside the file, of a possible size, and must not overlap. All but the
    last must be full. Their sums and their hash must be those of the shard.

    Raises:
        ValueError: The table does not describe the shard.
    """
    full = block_instances(shard.seq_len)
    check_range("offset", table.offset, 0, shard.num_bytes)
    check_range("size", table.size, 1, MAX_BLOCK_BYTES)
    check_range("instances", table.instances, 0, full)
    check_range("tokens", table.tokens, 0, full * shard.seq_len)
    ends = table.offset + table.size
    are_apart = bool(np.all(table.offset[1:] >= ends[:-1]))
    _expect(are_apart, "offset", "blocks that overlap", "blocks one after another")
    check_range("the last byte", ends, 0, shard.num_bytes)

    sums = f"{int(table.instances.sum())} instances and {int(table.tokens.sum())} tokens"
    expected = f"{shard.instances} instances and {shard.tokens} tokens"
    _expect(sums == expected, "sums", sums, f"what the shard table says: {expected}")
    are_full = bool(np.all(table.instances[:-1] == full))
    _expect(are_full, "instances", "a short block", f"{full} in every one but the last")
    digest = table.digest()
    expected = f"{shard.blocks_hash}, as the shard table says"
    _expect(digest == shard.blocks_hash, "blocks_hash", digest, expected)


def check_parquet(file: pq.ParquetFile, num_bytes: int) -> None:
    """Checks the sizes that a Parquet file's footer states, before its rows are read.

    A file can have at most as many rows as bytes, because each row has a hash or a checksum, which
    cannot be compressed to less than a byte. Decompressed, its columns may have at most 64 times as
    many bytes as the file, and 64 KiB more.

    Args:
        file: The table.
        num_bytes: The size of the file.

    Raises:
        ValueError: The footer states more rows or bytes than the file can hold.
    """
    metadata = file.metadata
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    rows = [metadata.num_rows, *(group.num_rows for group in groups)]
    are_possible = all(0 <= count <= num_bytes for count in rows)
    _expect(are_possible, "rows", max(rows), f"at most {num_bytes}, its bytes")

    # The descriptions of single columns are not read: if one is damaged, Arrow ends the process.
    sizes = [group.total_byte_size for group in groups]
    limit = 2**16 + 64 * num_bytes
    are_possible = all(size >= 0 for size in sizes) and sum(sizes) <= limit
    _expect(are_possible, "columns", f"{sum(sizes)} bytes", f"{limit} at most")


def check_range(name: str, values: Any, least: int, most: int) -> None:
    """Checks that every value of an array is at least `least` and at most `most`.

    Args:
        name: Names the values in the message.
        values: [N] numbers.
        least: The smallest value allowed.
        most: The largest value allowed.

    Raises:
        ValueError: A value is outside; the message shows the first.
    """
    outside = values[(values < least) | (values > most)]
    _expect(len(outside) == 0, name, outside[:1].tolist(), f"whole numbers from {least} to {most}")


def _check_row(row: "Shard | Group", where: str) -> None:
    """Checks the types of a row's fields, and that its counts are possible together.

    For example, an instance has at most `seq_len` tokens, and at most all tokens are masked.
    """
    _expect(row.split in SPLITS, f"{where}, split", row.split, f"one of {', '.join(SPLITS)}")
    for field in dataclasses.fields(row):
        name = f"{where}, {field.name}"
        value = getattr(row, field.name)
        if field.type in (str, "str"):
            _expect(isinstance(value, str), name, value, "text")
        elif field.type in (int, "int"):
            _check_number(name, value, 0, _MAX_NUMBER)
        elif field.name == "source_tokens":
            for tokens in value:
                _check_number(name, tokens, 0, row.tokens)
    _check_number(f"{where}, seq_len", row.seq_len, 1, MAX_SEQ_LEN)
    _check_number(f"{where}, tokens", row.tokens, 0, row.instances * row.seq_len)
    _check_number(f"{where}, masked", row.masked, 0, row.tokens)
    _check_number(f"{where}, random_next", row.random_next, 0, row.instances)


def _check_seal(name: str, seal: Seal) -> None:
    """Checks types and ranges of a seal's fields."""
    _check_number(f"{name}, documents", seal.documents, 0, _MAX_NUMBER)
    _check_number(f"{name}, tokens", seal.tokens, 0, _MAX_NUMBER)
    _check_hash(f"{name}, ids_xor", seal.ids_xor, 32)


def _check_number(name: str, value: Any, least: int, most: int) -> None:
    """Checks that a value is a whole number from `least` to `most`."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    is_inside = is_number and least <= value <= most
    _expect(is_inside, name, value, f"a whole number from {least} to {most}")


def _check_hash(name: str, value: Any, digits: int = 64) -> None:
    """Checks that a value is a text of `digits` hex digits."""
    is_hash = isinstance(value, str) and re.fullmatch(f"[0-9a-f]{{{digits}}}", value) is not None
    _expect(is_hash, name, value, f"{digits} hex digits")


def _expect(holds: bool, name: str, found: object, expected: str) -> None:
    """Raises a ValueError that shows a value and what was expected, unless the condition holds."""
    if not holds:
        raise ValueError(f"{name}: found {str(found)[:200]!r}, expected {expected}")
