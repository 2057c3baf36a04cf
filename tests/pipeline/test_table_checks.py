"""The largest and smallest numbers that a table may hold, and those next to them."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from pipeline.shards.records import BlockTable, Shard
from pipeline.shards.seal import NOTHING, Seal
from pipeline.shards.table_checks import check_blocks, check_parquet, check_rows

SEAL = Seal(3, 40, "0" * 32)
SMALL = {"num_bytes": 2048, "instances": 16, "tokens": 40, "masked": 5, "random_next": 2}
EXTREMES = {
    "pass_index": (0, 999, 1000),
    "num_bytes": (0, 2**36, 2**36 + 1),
    "instances": (0, 16, 17),
    "tokens": (0, 16 * 8192, 16 * 8192 + 1),
    "masked": (0, 40, 41),
    "random_next": (0, 16, 17),
    "masked_as_mask": (0, 2**62, 2**62 + 1),
    "masked_kept": (0, 2**62, 2**63),
}


def refused(said):
    return pytest.raises(ValueError, match=said)


def row(**changes):
    hashes = {"sha256": "a" * 64, "content_hash": "b" * 64, "blocks_hash": "c" * 32}
    given = {"split": "train", "seq_len": 8192, "pass_index": 0, **SMALL, **hashes, "seal": SEAL}
    given |= {"masked_as_mask": 0, "masked_kept": 0, **changes}
    return Shard(name=f"train/L8192/pass-{given['pass_index']:02d}/shard-00000.tar", **given)


def consistent(name, value):
    """A row with this number, whose others are as small as they must be beside it."""
    counts = ("num_bytes", "instances", "tokens", "masked", "random_next")
    smaller = counts[counts.index(name) :] if name in counts and not value else ()
    return row(**dict.fromkeys(smaller, 0) | {name: value})


@pytest.mark.parametrize("name", EXTREMES)
def test_numbers_of_a_shard(name):
    least, most, more = EXTREMES[name]
    for value in (least, most):
        check_rows([consistent(name, value)])
    for value in (-1, more):
        with refused(f"row 0, (pass|{name}).*: found '{value}', expected a whole number"):
            check_rows([row(**{name: value})])


def test_a_shard_of_nothing_is_none_of_a_seals_business():
    check_rows([row(seal=NOTHING)])
    with refused("the seal of a shard, tokens: found '-1'"):
        check_rows([row(seal=Seal(3, -1, "0" * 32))])


def blocks(offset, size, instances):
    tokens = [30, 10, 0][: len(offset)]
    columns = (np.array(each, np.int64) for each in (offset, size, instances, tokens))
    return BlockTable(*columns, np.zeros(len(offset), np.uint32))


def test_a_last_block_may_be_empty_and_the_others_full():
    table = blocks([512, 1536, 1700], [1024, 100, 348], [8, 8, 0])
    shard = row(blocks_hash=table.digest())
    check_blocks(table, shard)
    one_more = dataclasses.replace(table, size=table.size + np.array([0, 0, 1]))
    with refused(r"the last byte: found '\[2049\]'"):
        check_blocks(one_more, shard)


def test_where_blocks_may_lie_and_how_large_they_may_be():
    largest = 64 * 65_536
    shard = row(num_bytes=2 * largest, instances=11)
    for offset, size in (([0, largest], [largest, largest]), ([0, 1], [1, 1])):
        table = blocks(offset, size, [8, 3])
        check_blocks(table, dataclasses.replace(shard, blocks_hash=table.digest()))
    with refused(rf"size: found '\[{largest + 1}\]'"):
        check_blocks(blocks([0, largest - 1], [1, largest + 1], [8, 3]), shard)


def described(rows, *sizes):
    groups = [SimpleNamespace(num_rows=0, total_byte_size=size) for size in sizes]
    numbers = {"num_rows": rows, "num_row_groups": len(groups), "row_group": groups.__getitem__}
    return SimpleNamespace(metadata=SimpleNamespace(**numbers))


def test_what_a_parquet_file_may_say_of_its_size():
    limit = 2**16 + 64 * 100
    for found in (described(0), described(100, limit), described(1, 0, limit - 7, 7)):
        check_parquet(found, 100)
    for found, said in (
        (described(101), "rows: found '101', expected at most 100"),
        (described(-1), "rows: found"),
        (described(1, limit, 1), f"columns: found '{limit + 1} bytes'"),
        (described(1, -1, 1), "columns: found '0 bytes'"),
    ):
        with refused(said):
            check_parquet(found, 100)
