"""A finished dataset: opened, read, and refused where a file of it is changed or another's."""

import dataclasses
import hashlib
import json
import struct
import tarfile
from pathlib import Path

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.shards import block_tables
from pipeline.shards import manifest as tables
from pipeline.shards.block import block_digest, concatenate_blocks, content_hash, decode_block
from pipeline.shards.dataset import open_dataset
from pipeline.shards.records import BlockTable, canonical_hash
from pipeline.shards.verify import verify_dataset
from tests.datasets import CORPUS, block_rows, edit_manifest, shard_rows, with_own_hash, write_table

TRAIN = ((20, 9), (13, 17))
FIRST_SHARD = "train/L8192/pass-00/shard-00000.tar"


@pytest.fixture
def folder(tmp_path: Path, make_dataset) -> Path:
    return make_dataset(tmp_path / "dataset", TRAIN, validation=(5,))


def refused(said: str):
    return pytest.raises(ValueError, match=said)


def write_blocks(folder: Path, blocks: list[BlockTable]) -> None:
    (folder / tables.BLOCKS_TABLE).write_bytes(block_tables.blocks_table(blocks))


def first_blocks(folder: Path) -> BlockTable:
    dataset = open_dataset(str(folder))
    return dataset.blocks(dataset.all_shards[0])


def columns(table: BlockTable) -> list:
    return [
        (getattr(table, each.name).dtype, getattr(table, each.name).tolist())
        for each in dataclasses.fields(BlockTable)
    ]


def findings(folder: Path) -> list[str]:
    return [str(finding) for finding in verify_dataset(open_dataset(str(folder)))]


def test_passes_and_shards_are_found(folder):
    dataset = open_dataset(str(folder))
    assert [dataset.num_passes(split, 8192) for split in ("train", "validation")] == [2, 1]
    passes = [dataset.shards("train", 8192, i) for i in range(3)]
    names = [[f"train/L8192/pass-0{i}/shard-0000{n}.tar" for n in (0, 1)] for i in (0, 1)]
    assert [[shard.name for shard in each] for each in passes] == [*names, []]
    assert [[shard.instances for shard in each] for each in passes] == [[20, 9], [13, 17], []]
    totals = [
        (each.split, each.passes, each.shards, each.instances) for each in dataset.manifest.groups
    ]
    assert totals == [("train", 2, 4, 59), ("validation", 1, 1, 5)]
    said = "no train instances of seq_len 128; the dataset has train L8192, validation L8192"
    with refused(said):
        dataset.num_passes("train", 128)


def test_block_tables_lead_to_the_blocks_and_the_tar_members(folder):
    dataset = open_dataset(str(folder))
    [shard, _] = dataset.shards("train", 8192, 0)
    table = dataset.blocks(shard)
    assert table.instances.tolist() == [8, 8, 4]
    ranges = zip(table.offset.tolist(), table.size.tolist(), strict=True)
    bodies = [dataset.read_bytes(shard.name, start, start + size) for start, size in ranges]
    with tarfile.open(folder / shard.name) as tar:
        assert [tar.extractfile(member).read() for member in tar] == bodies
    blocks = [decode_block(body, "here") for body in bodies]
    assert concatenate_blocks(blocks).document_a.tolist() == list(range(20))
    assert content_hash([block_digest(block) for block in blocks]) == shard.content_hash
    assert hashlib.sha256((folder / shard.name).read_bytes()).hexdigest() == shard.sha256


@pytest.mark.parametrize(("num_shards", "num_requests"), [(3, 1), (400, 2)])
def test_a_large_block_table_is_read_a_row_group_at_a_time(
    folder, monkeypatch, num_shards, num_requests
):
    monkeypatch.setattr(block_tables, "WHOLE_BYTES", 100)
    monkeypatch.setattr(block_tables, "ROWS_PER_GROUP", 4)
    [shard, *_], [table, *_] = shard_rows(folder), block_rows(folder)
    content = block_tables.blocks_table([table] * num_shards)
    asked = []

    def read(start: int, stop: int) -> bytes:
        asked.append((start, stop))
        return content[start:stop]

    lazy = block_tables.BlockTables(read, lambda: len(content), [shard] * num_shards, "here")
    for row in (num_shards - 1, 0, 1):
        assert columns(lazy.table(row)) == columns(table)
    assert len(asked) == num_requests + 3
    assert asked[0] == (max(0, len(content) - 2**16), len(content))
    assert all(stop - start < 1000 for start, stop in asked[num_requests:])
    assert asked[-1] == asked[-2]  # three blocks a shard, so the first two share a row group


@pytest.mark.parametrize("whole_bytes", [100, 2**20])
def test_what_does_not_describe_its_shard_is_read_again(folder, monkeypatch, whole_bytes):
    """Footer and all: it may have been damaged on its way, or be that of another file."""
    monkeypatch.setattr(block_tables, "WHOLE_BYTES", whole_bytes)
    rows, blocks = shard_rows(folder), block_rows(folder)
    others = [
        dataclasses.replace(table, offset=table.offset[::-1] * 977, crc32=table.crc32 + 5)
        for table in blocks
    ]
    right, sent = (folder / tables.BLOCKS_TABLE).read_bytes(), block_tables.blocks_table(others)
    opened = block_tables.BlockTables(
        lambda start, stop: sent[start:stop], lambda: len(sent), rows, "here"
    )
    with refused(r"here: rows of .* do not describe it"):
        opened.table(0)
    sent = right
    assert columns(opened.table(0)) == columns(blocks[0])


def test_a_dataset_opens_at_any_fsspec_url(folder):
    memory = fsspec.filesystem("memory")
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        memory.pipe_file(f"/data/{path.relative_to(folder)}", path.read_bytes())
    dataset = open_dataset("memory://data")
    [shard, _] = dataset.shards("train", 8192, 1)
    assert dataset.blocks(shard).instances.tolist() == [8, 5]
    assert dataset.read_file("vocab.txt").startswith(b"[PAD]\n")
    assert dataset.locate("vocab.txt") == "memory://data/vocab.txt"
    memory.rm("/data", recursive=True)


SHARDS, BLOCKS = tables.SHARDS_TABLE, tables.BLOCKS_TABLE


def without(name):
    return lambda folder: (folder / name).unlink()


def unpinned(name):
    return lambda folder: edit_manifest(folder, lambda fields: fields["tables_sha256"].pop(name))


def with_row(is_pinned=True, **changes):
    """The shard table with another first row."""

    def edit(folder):
        first, *others = shard_rows(folder)
        data = tables.shards_table([dataclasses.replace(first, **changes), *others])
        (folder / SHARDS).write_bytes(data)
        if is_pinned:
            edit_manifest(folder)

    return edit


def spoilt(name, spoil):
    return lambda folder: write_table(folder, name, spoil((folder / name).read_bytes()))


def regrouped(folder):
    pq.write_table(pq.read_table(folder / BLOCKS), folder / BLOCKS, row_group_size=4)


DAMAGED = "a damaged Parquet table: .*; restore or rebuild"
FOREIGN = r"does not belong to manifest.json: its root hash is \w{64}, the"


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (without(tables.MANIFEST), "holds no manifest.json: not a finished dataset; run `python"),
        (without(SHARDS), f"{SHARDS} is missing; restore or rebuild the dataset"),
        (without(BLOCKS), f"{BLOCKS} is missing; restore or rebuild the dataset"),
        *(
            (unpinned(name), f"manifest.json: tables_sha256 lacks {name}; restore or rebuild")
            for name in (SHARDS, BLOCKS)
        ),
        *(
            (spoilt(name, spoil), f"{name}: {DAMAGED}")
            for name in (SHARDS, BLOCKS)
            for spoil in (lambda _: b"", lambda data: data[:-20], lambda data: b"PAR1" + data[:40])
        ),
        (with_row(content_hash="0" * 64), f"{SHARDS} {FOREIGN}"),
        (with_row(name="train/L8192/pass-00/shard-00007.tar"), f"{SHARDS} {FOREIGN}"),
        (with_row(pass_index=1, name="train/L8192/pass-01/shard-00007.tar"), f"{SHARDS} {FOREIGN}"),
        (
            with_row(is_pinned=False, masked_kept=1),  # of another build, with the same root hash
            f"{SHARDS} is not the file that manifest.json speaks of: its sha256 is",
        ),
        (regrouped, f"{BLOCKS}: a row group ends inside a shard; it is of another build"),
        (
            lambda folder: write_blocks(folder, block_rows(folder)[:-1]),
            f"{BLOCKS}: 10 rows, expected 11 for the blocks of 5 shards; it is of another build",
        ),
    ],
)
def test_what_is_no_sound_dataset_is_refused(folder, edit, said):
    edit(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        first_blocks(folder)


NO_SEAL = {"format_version": 3, "groups": []}
SURPRISE = {**NO_SEAL, "seal": dataclasses.asdict(CORPUS), "surprise": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a dataset manifest"),
        (b"[]", "not a dataset manifest"),
        (b"{}", "not a dataset manifest: KeyError"),
        (b'{"format_version": 2}', "format_version is 2, this program reads 3; build the dataset"),
        (b'{"format_version": 3, "groups": []}', "was edited or damaged: what it holds has the m"),
        (with_own_hash(NO_SEAL), "not a dataset manifest: 'seal'"),
        (with_own_hash({**NO_SEAL, "seal": {}}), "not a dataset manifest: .*missing"),
        (with_own_hash(SURPRISE), "not a dataset manifest: .*surprise"),
    ],
)
def test_what_is_not_a_manifest_is_refused(folder, content, message):
    (folder / tables.MANIFEST).write_bytes(content)
    with refused(message):
        open_dataset(str(folder))


@pytest.mark.parametrize("whole_bytes", [100, 2**20])
def test_blocks_and_shards_of_another_build_are_refused(folder, monkeypatch, whole_bytes):
    """Their rows have the places, sizes and sums of the right ones, and the crc32 of the blocks."""
    monkeypatch.setattr(block_tables, "WHOLE_BYTES", whole_bytes)
    first, *others = block_rows(folder)
    foreign = dataclasses.replace(first, crc32=first.crc32 ^ np.array([0, 1, 0], np.uint32))
    write_blocks(folder, [foreign, *others])
    dataset = open_dataset(str(folder))
    assert columns(dataset.blocks(dataset.all_shards[1])) == columns(others[0])
    found = r"blocks_hash: found '\w{32}', expected \w{32}, as the shard"
    with refused(rf"rows of {FIRST_SHARD} do not describe it: {found}"):
        dataset.blocks(dataset.all_shards[0])


def test_the_digest_of_a_block_table_by_hand():
    columns = (np.array([n, n + 4], np.int64) for n in (1, 2, 3, 4))
    table = BlockTable(*columns, np.array([5, 9], np.uint32))
    data = struct.pack("<9Q2I", 2, 1, 5, 2, 6, 3, 7, 4, 8, 5, 9)
    assert table.digest() == hashlib.blake2b(data, digest_size=16).hexdigest()


@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.json"])
def test_a_changed_vocabulary_is_refused_where_it_is_read_and_found_by_verify(folder, name):
    path, said = folder / name, "is not the file that manifest.json speaks of"
    path.write_bytes(path.read_bytes().replace(b"w11", b"w1x"))
    with refused(rf"{name} {said}: its sha256 is \w{{64}}"):
        open_dataset(str(folder)).read_file(name)
    [finding] = findings(folder)
    assert finding.startswith(f"{path}: {said}")
    path.unlink()
    assert findings(folder) == [f"{path}: missing"]


@pytest.mark.parametrize(
    "edit",
    [
        lambda fields: fields.update(vocab_size=fields["vocab_size"] + 1),
        lambda fields: fields["groups"][0].update(masked=1),
        lambda fields: fields["software"].update(numpy="9"),
        lambda fields: fields.pop("counters"),
        lambda fields: fields.pop("manifest_hash"),
    ],
)
def test_an_edited_manifest_is_refused(folder, edit):
    path = folder / tables.MANIFEST
    fields = json.loads(path.read_bytes())
    edit(fields)
    path.write_text(json.dumps(fields))
    said = r"manifest.json was edited or damaged: what it holds has the manifest_hash \w{64}"
    with refused(said):
        open_dataset(str(folder))


def test_a_manifest_may_be_laid_out_otherwise(folder):
    expected, path = open_dataset(str(folder)).manifest, folder / tables.MANIFEST
    path.write_text(json.dumps(dict(reversed(json.loads(path.read_bytes()).items()))))
    assert open_dataset(str(folder)).manifest == expected


def counted(*sources):
    return [{"counters": counters} for counters in sources]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"vocab_size": 99}, "vocab.txt: 100 entries, the manifest says 99"),
        ({"vocab_size": 101}, "vocab.txt: 100 entries, the manifest says 101"),
        (
            {"special_ids": {"pad": 0, "unk": 1, "cls": 2, "sep": 4, "mask": 3}},
            "vocab.txt: id 4 is [MASK], the manifest says it is [SEP]",
        ),
        (
            {"counters": {"documents": 7}, "sources": counted({"documents": 2}, {"documents": 4})},
            "manifest.json: documents: 7 in all, 6 of its sources together",
        ),
        (
            {"counters": {"documents": 7}},
            "manifest.json: documents: 7 by the counters, 100000 by the seal",
        ),
        (
            {"counters": {}, "sources": counted({"documents": 1, "tokens": 0})},
            "manifest.json: documents: 0 in all, 1 of its sources together",
        ),
    ],
)
def test_verify_compares_what_the_manifest_says_twice(folder, changes, found):
    edit_manifest(folder, **changes)
    assert f"{folder}/{found}" in findings(folder)


def test_hashes_by_hand(folder):
    def hash_of(lines: list[str]) -> str:
        joined = "".join(f"{line}\n" for line in lines)
        return hashlib.blake2b(joined.encode(), digest_size=32).hexdigest()

    content = {row.name: row.content_hash for row in shard_rows(folder)}
    lines = []
    for name in ("train/L8192/pass-00", "train/L8192/pass-01", "validation/L8192/pass-00"):
        own = [f"{shard} {content[shard]}" for shard in sorted(content) if shard.startswith(name)]
        lines.append(f"{name} {hash_of(own)}")
    assert tables.root_hash(shard_rows(folder)) == hash_of(lines)
    assert tables.root_hash(reversed(shard_rows(folder))) == hash_of(lines)


def test_settings_are_hashed_as_canonical_json():
    expected = hashlib.blake2b(b'{"a":[1,2],"b":"\\u00e9"}', digest_size=32).hexdigest()
    assert canonical_hash({"b": "é", "a": [1, 2]}) == expected


@pytest.mark.parametrize("name", ["masked", "random_next", "masked_as_mask", "masked_kept"])
def test_verify_counts_what_the_shard_table_says(folder, name):
    rows = shard_rows(folder)
    count, shard = getattr(rows[1], name), rows[1].name
    rows[1] = dataclasses.replace(rows[1], **{name: count + 1})
    (folder / tables.SHARDS_TABLE).write_bytes(tables.shards_table(rows))
    edit_manifest(folder, groups=[dataclasses.asdict(group) for group in tables.group_totals(rows)])
    said = f"{name}: {count} in its blocks, {count + 1} in the shard table"
    found = [each for each in findings(folder) if shard in each]
    assert found == [f"{folder}/{shard}: {said}"]


def test_verify_compares_the_tokenizer_with_the_vocabulary(folder):
    data = (folder / "tokenizer.json").read_text().replace('"w7"', '"w7x"')
    (folder / "tokenizer.json").write_text(data)
    edit_manifest(folder, tokenizer_sha256=hashlib.sha256(data.encode()).hexdigest())
    said = f"{folder}/tokenizer.json: its tokens and ids are not those of vocab.txt"
    assert said in findings(folder)


def test_a_manifest_that_is_shown_and_not_given_is_named(folder, monkeypatch):
    monkeypatch.setattr("pipeline.storage.folder.Folder.exists", lambda *_: True)
    (folder / tables.MANIFEST).unlink()
    with pytest.raises(FileNotFoundError, match=r"manifest.json is listed, but cannot be read"):
        open_dataset(str(folder))
