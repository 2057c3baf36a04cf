"""The largest and smallest numbers that a table may hold, and those next to them."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from pipeline.shards.records import BlockTable, Group, Manifest, Shard
from pipeline.shards.seal import NOTHING, Seal
from pipeline.shards.table_checks import check_blocks, check_manifest, check_parquet, check_rows

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


def row(**changes):
    fields = {each.name: 0 for each in dataclasses.fields(Shard)}
    hashes = {"sha256": "a" * 64, "content_hash": "b" * 64, "blocks_hash": "c" * 32}
    given = {
        **fields,
        **hashes,
        **SMALL,
        "split": "train",
        "seq_len": 8192,
        "seal": SEAL,
        "source_tokens": (),
    }
    given |= changes
    name = f"train/L8192/pass-{given['pass_index']:02d}/shard-00000.tar"
    return Shard(**{**given, "name": name})


def consistent(name, value):
    """A row with this number, whose others are as small as they must be beside it."""
    others = (
        {}
        if value
        else {"tokens": {"masked": 0}, "instances": {"tokens": 0, "masked": 0, "random_next": 0}}
    )
    none = dict.fromkeys(("instances", "tokens", "masked", "random_next"), 0)
    return row(
        **(none if name == "num_bytes" and not value else others.get(name, {})), **{name: value}
    )


@pytest.mark.parametrize("name", EXTREMES)
def test_numbers_of_a_shard(name):
    least, most, more = EXTREMES[name]
    for value in (least, most):
        check_rows([consistent(name, value)])
    for value in (-1, more):
        said = f"row 0, (pass|{name}).*: found '{value}', expected a whole number"
        with pytest.raises(ValueError, match=said):
            check_rows([row(**{name: value})])


@pytest.mark.parametrize("name", ["instances", "masked_as_mask", "seq_len"])
def test_numbers_beyond_64_bits_are_refused(name):
    with pytest.raises(ValueError, match=f"row 0, {name}: found '{2**64}'"):
        check_rows([dataclasses.replace(row(), **{name: 2**64})])


def test_a_shard_of_nothing_is_none_of_a_seals_business():
    check_rows([dataclasses.replace(row(), seal=NOTHING)])
    with pytest.raises(ValueError, match="the seal of a shard, tokens: found '-1'"):
        check_rows([dataclasses.replace(row(), seal=dataclasses.replace(SEAL, tokens=-1))])


def test_a_last_block_may_be_empty_and_the_others_full():
    table = BlockTable(
        *(
            np.array(each, np.int64)
            for each in ([512, 1536, 1700], [1024, 100, 348], [8, 8, 0], [30, 10, 0])
        ),
        np.zeros(3, np.uint32),
    )
    shard = dataclasses.replace(row(), blocks_hash=table.digest())
    check_blocks(table, shard)
    one_more = dataclasses.replace(table, size=table.size + np.array([0, 0, 1]))
    with pytest.raises(ValueError, match=r"the last byte: found '\[2049\]'"):
        check_blocks(one_more, shard)


def blocks(offset, size, full):
    counts = np.array([full, 3], np.int64), np.array([30, 10], np.int64)
    places = np.array(offset, np.int64), np.array(size, np.int64)
    return BlockTable(*places, *counts, np.zeros(2, np.uint32))


def test_where_blocks_may_lie_and_how_large_they_may_be():
    largest = 64 * 65_536
    shard = row(num_bytes=2 * largest, instances=11)
    for offset, size in (([0, largest], [largest, largest]), ([0, 1], [1, 1])):
        table = blocks(offset, size, 8)
        check_blocks(table, dataclasses.replace(shard, blocks_hash=table.digest()))
    for offset, size, said in (
        ([-1, 5], [2, 2], r"offset: found '\[-1\]'"),
        ([0, 1], [0, 1], r"size: found '\[0\]'"),
        ([0, largest - 1], [1, largest + 1], rf"size: found '\[{largest + 1}\]'"),
        ([0, 9], [10, 1], "blocks that overlap"),
    ):
        with pytest.raises(ValueError, match=said):
            check_blocks(blocks(offset, size, 8), shard)


def manifest(**changes):
    hashes = dict.fromkeys(
        ("settings_hash", "vocab_sha256", "root_hash", "tokenizer_sha256"), "a" * 64
    )
    ids = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    objects = {name: {} for name in ("software", "settings", "counters")}
    group = Group("train", 65_535, 1000, 1, 1, 1, 1, 1, 0, 0)
    fields = {
        "format_version": 3,
        "vocab_size": 5,
        "special_ids": ids,
        "groups": (group,),
        "seal": SEAL,
    }
    return Manifest(**{**hashes, **objects, **fields, **changes})


def test_numbers_of_a_manifest():
    check_manifest(manifest())
    check_manifest(manifest(vocab_size=2**32))
    [group] = manifest().groups
    for changes, said in (
        (
            {"vocab_size": 2**32 + 1},
            f"vocab_size: found '{2**32 + 1}', expected a whole number from 1",
        ),
        ({"vocab_size": 4}, "special_ids mask: found '4', expected a whole number from 0 to 3"),
        (
            {"special_ids": {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 3}},
            "expected ids that differ",
        ),
        (
            {"special_ids": {"pad": -1, "unk": 1, "cls": 2, "sep": 3, "mask": 4}},
            "special_ids pad: found '-1'",
        ),
        ({"groups": (dataclasses.replace(group, passes=1001),)}, "passes of a group: found '1001'"),
        ({"groups": (dataclasses.replace(group, passes=0),)}, "passes of a group: found '0'"),
        ({"groups": (dataclasses.replace(group, seq_len=65_536),)}, "seq_len: found '65536'"),
        ({"groups": (group, group)}, "expected each split and length once"),
    ):
        with pytest.raises(ValueError, match=said):
            check_manifest(manifest(**changes))


def described(rows, sizes):
    groups = [SimpleNamespace(num_rows=0, total_byte_size=size) for size in sizes]
    metadata = SimpleNamespace(
        num_rows=rows, num_row_groups=len(groups), row_group=groups.__getitem__
    )
    return SimpleNamespace(metadata=metadata)


def test_what_a_parquet_file_may_say_of_its_size():
    limit = 2**16 + 64 * 100
    for rows, sizes in ((0, []), (100, [limit]), (1, [0, limit - 7, 7])):
        check_parquet(described(rows, sizes), 100)
    for rows, sizes, said in (
        (101, [], "rows: found '101', expected at most 100"),
        (-1, [], "rows: found"),
        (1, [limit, 1], f"columns: found '{limit + 1} bytes'"),
        (1, [-1, 1], "columns: found '0 bytes'"),
    ):
        with pytest.raises(ValueError, match=said):
            check_parquet(described(rows, sizes), 100)
