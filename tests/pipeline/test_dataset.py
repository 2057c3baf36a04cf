"""A finished dataset: opened, read, and refused where a file of it was tampered with or belongs to another."""

import dataclasses
import hashlib
import io
import json
import tarfile
from pathlib import Path

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.shards import block_tables as block_table_files
from pipeline.shards import manifest as tables
from pipeline.shards.block import block_digest, concatenate_blocks, content_hash, decode_block
from pipeline.shards.dataset import open_dataset
from pipeline.shards.records import BlockTable, Shard, canonical_hash
from pipeline.shards.verify import verify_dataset
from tests.datasets import edit_manifest, with_own_hash

TRAIN = ((20, 9), (13, 17))
FIRST_SHARD = "train/L8192/pass-00/shard-00000.tar"


@pytest.fixture
def folder(tmp_path: Path, make_dataset) -> Path:
    return make_dataset(tmp_path / "dataset", TRAIN, validation=(5,))


def write_table(folder: Path, name: str, data: bytes) -> None:
    """One table, and a manifest that speaks of it."""
    (folder / name).write_bytes(data)
    edit_manifest(folder)


def shard_rows(folder: Path) -> list[Shard]:
    return tables.parse_shards_table((folder / tables.SHARDS_TABLE).read_bytes(), "here")


def block_tables(folder: Path) -> list[BlockTable]:
    rows = shard_rows(folder)
    opened = block_table_files.open_block_tables(
        (folder / tables.BLOCKS_TABLE).read_bytes(), rows, "here"
    )
    return [opened.table(row) for row in range(len(rows))]


def test_passes_and_shards_are_found(folder):
    dataset = open_dataset(str(folder))
    assert [dataset.num_passes(split, 8192) for split in ("train", "validation")] == [2, 1]
    found = [
        [(shard.name, shard.instances) for shard in dataset.shards("train", 8192, i)]
        for i in range(2)
    ]
    assert found == [
        [(FIRST_SHARD, 20), ("train/L8192/pass-00/shard-00001.tar", 9)],
        [("train/L8192/pass-01/shard-00000.tar", 13), ("train/L8192/pass-01/shard-00001.tar", 17)],
    ]
    assert dataset.shards("train", 8192, 2) == []
    totals = {
        (group.split, group.passes, group.shards, group.instances)
        for group in dataset.manifest.groups
    }
    assert totals == {("train", 2, 4, 59), ("validation", 1, 1, 5)}


def test_other_lengths_are_refused_with_the_choices(folder):
    with pytest.raises(
        ValueError,
        match="no train instances of seq_len 128; the dataset has train L8192, validation L8192",
    ):
        open_dataset(str(folder)).num_passes("train", 128)


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
    monkeypatch.setattr(block_table_files, "WHOLE_BYTES", 100)
    monkeypatch.setattr(block_table_files, "ROWS_PER_GROUP", 4)
    [shard, *_], [table, *_] = shard_rows(folder), block_tables(folder)
    content = block_table_files.blocks_table([table] * num_shards)
    asked = []

    def read(start: int, stop: int) -> bytes:
        asked.append((start, stop))
        return content[start:stop]

    lazy = block_table_files.BlockTables(read, lambda: len(content), [shard] * num_shards, "here")
    for row in (num_shards - 1, 0, 1):
        found = lazy.table(row)
        for column in dataclasses.fields(BlockTable):
            assert getattr(found, column.name).tolist() == getattr(table, column.name).tolist()
    assert len(asked) == num_requests + 3
    assert asked[0] == (max(0, len(content) - 2**16), len(content))
    assert all(stop - start < 1000 for start, stop in asked[num_requests:])
    assert asked[-1] == asked[-2]  # three blocks a shard, so the first two share a row group


@pytest.mark.parametrize("whole_bytes", [100, 2**20])
def test_what_does_not_describe_its_shard_is_read_again(folder, monkeypatch, whole_bytes):
    """Footer and all: it may have been damaged on its way, or be that of another file."""
    monkeypatch.setattr(block_table_files, "WHOLE_BYTES", whole_bytes)
    rows, blocks = shard_rows(folder), block_tables(folder)
    others = [
        dataclasses.replace(table, offset=table.offset[::-1] * 977, crc32=table.crc32 + 5)
        for table in blocks
    ]
    files = {
        "wrong": block_table_files.blocks_table(others),
        "right": (folder / tables.BLOCKS_TABLE).read_bytes(),
    }
    sent = "wrong"
    opened = block_table_files.BlockTables(
        lambda start, stop: files[sent][start:stop], lambda: len(files[sent]), rows, "here"
    )
    with pytest.raises(ValueError, match=r"here: rows of .* do not describe it"):
        opened.table(0)
    sent = "right"
    assert opened.table(0).offset.tolist() == blocks[0].offset.tolist()


def test_row_groups_hold_whole_shards(folder, monkeypatch):
    monkeypatch.setattr(block_table_files, "ROWS_PER_GROUP", 4)
    blocks = block_tables(folder)  # 3, 2, 2, 3 and 1 of them
    file = pq.ParquetFile(io.BytesIO(block_table_files.blocks_table(blocks)))
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [5, 5, 1]


def test_a_row_group_that_ends_inside_a_shard_is_refused(folder):
    path = folder / tables.BLOCKS_TABLE
    pq.write_table(pq.read_table(path), path, row_group_size=4)
    dataset = open_dataset(str(folder))
    with pytest.raises(
        ValueError, match=r"blocks.parquet: a row group ends inside a shard; it is of another build"
    ):
        dataset.blocks(dataset.all_shards[0])


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-20], lambda data: data[:-8] + b"\xff" * 8, lambda _: b"PAR1" * 50]
)
def test_a_large_block_table_that_is_damaged_is_refused(folder, monkeypatch, spoil):
    monkeypatch.setattr(block_table_files, "WHOLE_BYTES", 100)
    path = folder / tables.BLOCKS_TABLE
    path.write_bytes(spoil(path.read_bytes()))
    dataset = open_dataset(str(folder))
    with pytest.raises(ValueError, match=r"blocks.parquet: a damaged Parquet table"):
        dataset.blocks(dataset.all_shards[0])


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


def test_an_unfinished_dataset_is_refused(folder):
    (folder / tables.MANIFEST).unlink()
    with pytest.raises(
        FileNotFoundError,
        match=r"holds no manifest.json: not a finished dataset; run `python -m pipeline",
    ):
        open_dataset(str(folder))


@pytest.mark.parametrize("name", [tables.SHARDS_TABLE, "vocab.txt"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(
        FileNotFoundError, match=f"{name} is missing; restore or rebuild the dataset"
    ):
        open_dataset(str(folder)).read_file(name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a dataset manifest"),
        (b"[]", "not a dataset manifest"),
        (b"{}", "not a dataset manifest: KeyError"),
        (
            b'{"format_version": 2}',
            "format_version is 2, this program reads 3; build the dataset again into another",
        ),
        (
            b'{"format_version": 3, "groups": []}',
            "was edited or damaged: what it holds has the manifest_hash ",
        ),
        (with_own_hash({"format_version": 3, "groups": []}), "not a dataset manifest: 'seal'"),
        (
            with_own_hash({"format_version": 3, "groups": [], "seal": {}}),
            "not a dataset manifest: .*missing",
        ),
    ],
)
def test_what_is_not_a_manifest_is_refused(folder, content, message):
    (folder / tables.MANIFEST).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        open_dataset(str(folder))


@pytest.mark.parametrize("name", [tables.SHARDS_TABLE, tables.BLOCKS_TABLE])
@pytest.mark.parametrize(
    "spoil", [lambda _: b"", lambda data: data[:-20], lambda data: b"PAR1" + data[:40]]
)
def test_damaged_tables_are_refused(folder, name, spoil):
    write_table(folder, name, spoil((folder / name).read_bytes()))
    with pytest.raises(
        ValueError, match=rf"{name}: a damaged Parquet table: .*; restore or rebuild"
    ):
        (dataset := open_dataset(str(folder))).blocks(dataset.all_shards[0])


def test_tables_of_another_kind_are_refused(folder):
    write_table(folder, tables.SHARDS_TABLE, (folder / tables.BLOCKS_TABLE).read_bytes())
    with pytest.raises(
        ValueError,
        match=r"shards.parquet: columns are \['shard', 'offset', .* expected \['split', ",
    ):
        open_dataset(str(folder))


@pytest.mark.parametrize(
    "change",
    [
        {"content_hash": "0" * 64},
        {"name": "train/L8192/pass-00/shard-00007.tar"},
        {"pass_index": 1, "name": "train/L8192/pass-01/shard-00007.tar"},
    ],
)
def test_a_shard_table_that_is_not_the_manifests_is_refused(folder, change):
    rows = shard_rows(folder)
    rows[0] = dataclasses.replace(rows[0], **change)
    write_table(folder, tables.SHARDS_TABLE, tables.shards_table(rows))
    with pytest.raises(
        ValueError,
        match=r"shards.parquet does not belong to manifest.json: its root hash is \w{64}, the",
    ):
        open_dataset(str(folder))


def change_counts(table: BlockTable) -> BlockTable:
    return dataclasses.replace(table, instances=table.instances + 1)


def change_tokens(table: BlockTable) -> BlockTable:
    return dataclasses.replace(table, tokens=table.tokens - 1)


def swap_blocks(table: BlockTable) -> BlockTable:
    return dataclasses.replace(table, offset=table.offset[::-1].copy())


def reach_past_the_end(table: BlockTable) -> BlockTable:
    return dataclasses.replace(table, size=table.size + np.array([0, 0, 10**6]))


@pytest.mark.parametrize("change", [change_counts, change_tokens, swap_blocks, reach_past_the_end])
def test_block_tables_that_do_not_describe_their_shard_are_refused(folder, change):
    first, *others = block_tables(folder)
    (folder / tables.BLOCKS_TABLE).write_bytes(
        block_table_files.blocks_table([change(first), *others])
    )
    dataset = open_dataset(str(folder))
    with pytest.raises(
        ValueError, match=rf"blocks.parquet: rows of {FIRST_SHARD} do not describe it"
    ):
        dataset.blocks(dataset.shards("train", 8192, 0)[0])


def test_block_tables_of_another_dataset_are_refused(folder):
    (folder / tables.BLOCKS_TABLE).write_bytes(
        block_table_files.blocks_table(block_tables(folder)[:-1])
    )
    dataset = open_dataset(str(folder))
    with pytest.raises(
        ValueError,
        match=r"blocks.parquet: 10 rows, expected 11 for the blocks of 5 shards; it is of another build",
    ):
        dataset.blocks(dataset.all_shards[0])


@pytest.mark.parametrize("whole_bytes", [100, 2**20])
def test_blocks_and_shards_of_another_build_are_refused(folder, monkeypatch, whole_bytes):
    """Their rows have the places, sizes and sums that they should have, and the crc32 of the blocks that are there."""
    monkeypatch.setattr(block_table_files, "WHOLE_BYTES", whole_bytes)
    first, *others = block_tables(folder)
    foreign = dataclasses.replace(first, crc32=first.crc32 ^ np.array([0, 1, 0], np.uint32))
    (folder / tables.BLOCKS_TABLE).write_bytes(block_table_files.blocks_table([foreign, *others]))
    dataset = open_dataset(str(folder))
    assert dataset.blocks(dataset.all_shards[1]).crc32.tolist() == others[0].crc32.tolist()
    expected = rf"rows of {FIRST_SHARD} do not describe it: blocks_hash: found '\w{{32}}', expected \w{{32}}, as the shard"
    with pytest.raises(ValueError, match=expected):
        dataset.blocks(dataset.all_shards[0])


def test_the_digest_of_a_block_table_by_hand():
    table = BlockTable(
        *(np.array([n, n + 4], np.int64) for n in (1, 2, 3, 4)), np.array([5, 9], np.uint32)
    )
    numbers = b"".join(n.to_bytes(8, "little") for n in (2, 1, 5, 2, 6, 3, 7, 4, 8)) + bytes(
        [5, 0, 0, 0, 9, 0, 0, 0]
    )
    assert table.digest() == hashlib.blake2b(numbers, digest_size=16).hexdigest()


def test_a_shard_table_of_another_build_is_refused(folder):
    """Its root hash is that of the manifest, as a root hash covers content alone."""
    rows = shard_rows(folder)
    rows[0] = dataclasses.replace(rows[0], masked_kept=rows[0].masked_kept + 1)
    (folder / tables.SHARDS_TABLE).write_bytes(tables.shards_table(rows))
    with pytest.raises(
        ValueError,
        match=r"shards.parquet is not the file that manifest.json speaks of: its sha256 is",
    ):
        open_dataset(str(folder))


@pytest.mark.parametrize("name", [tables.SHARDS_TABLE, tables.BLOCKS_TABLE])
def test_a_manifest_that_does_not_speak_of_a_table_is_refused(folder, name):
    edit_manifest(folder, lambda fields: fields["tables_sha256"].pop(name))
    with pytest.raises(
        ValueError, match=rf"manifest.json: tables_sha256 lacks {name}; restore or rebuild"
    ):
        open_dataset(str(folder))


@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.json"])
def test_a_changed_vocabulary_is_refused_where_it_is_read_and_found_by_verify(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes().replace(b"w11", b"w1x"))
    dataset = open_dataset(str(folder))
    with pytest.raises(
        ValueError,
        match=rf"{name} is not the file that manifest.json speaks of: its sha256 is \w{{64}}",
    ):
        dataset.read_file(name)
    [finding] = map(str, verify_dataset(dataset))
    assert finding.startswith(f"{path}: is not the file that manifest.json speaks of")
    path.unlink()
    assert [str(finding) for finding in verify_dataset(dataset)] == [f"{path}: missing"]


@pytest.mark.parametrize(
    "edit",
    [
        lambda fields: fields.update(vocab_size=fields["vocab_size"] + 1),
        lambda fields: fields.update(counters={"documents": 5}),
        lambda fields: fields["special_ids"].update(mask=7),
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
    with pytest.raises(
        ValueError,
        match=r"manifest.json was edited or damaged: what it holds has the manifest_hash \w{64}",
    ):
        open_dataset(str(folder))


def test_a_manifest_may_be_laid_out_otherwise(folder):
    expected, path = open_dataset(str(folder)).manifest, folder / tables.MANIFEST
    path.write_text(json.dumps(dict(reversed(json.loads(path.read_bytes()).items()))))
    assert open_dataset(str(folder)).manifest == expected


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
            {
                "counters": {"documents": 7},
                "sources": [{"counters": {"documents": n}} for n in (2, 4)],
            },
            "manifest.json: documents: 7 in all, 6 of its sources together",
        ),
        (
            {"counters": {"documents": 7}},
            "manifest.json: documents: 7 by the counters, 100000 by the seal",
        ),
        (
            {"counters": {}, "sources": [{"counters": {"documents": 1, "tokens": 0}}]},
            "manifest.json: documents: 0 in all, 1 of its sources together",
        ),
    ],
)
def test_verify_compares_what_the_manifest_says_twice(folder, changes, found):
    edit_manifest(folder, **changes)
    assert f"{folder}/{found}" in [
        str(finding) for finding in verify_dataset(open_dataset(str(folder)))
    ]


def test_tables_come_back_as_written(folder):
    rows, blocks = shard_rows(folder), block_tables(folder)
    assert tables.parse_shards_table(tables.shards_table(rows), "here") == rows
    again = block_table_files.open_block_tables(
        block_table_files.blocks_table(blocks), rows, "here"
    )
    for index, table in enumerate(blocks):
        found = again.table(index)
        for name in ("offset", "size", "instances", "tokens", "crc32"):
            assert getattr(found, name).tolist() == getattr(table, name).tolist()
            assert getattr(found, name).dtype == getattr(table, name).dtype


def test_hashes_by_hand(folder):
    def hash_of(*lines: str) -> str:
        return hashlib.blake2b(
            "".join(f"{line}\n" for line in lines).encode(), digest_size=32
        ).hexdigest()

    content = {row.name: row.content_hash for row in shard_rows(folder)}
    lines = [
        f"{name} {hash_of(*(f'{shard} {content[shard]}' for shard in sorted(content) if shard.startswith(name)))}"
        for name in ("train/L8192/pass-00", "train/L8192/pass-01", "validation/L8192/pass-00")
    ]
    assert tables.root_hash(shard_rows(folder)) == hash_of(*lines)
    assert tables.root_hash(reversed(shard_rows(folder))) == hash_of(*lines)


def test_settings_are_hashed_as_canonical_json():
    expected = hashlib.blake2b(b'{"a":[1,2],"b":"\\u00e9"}', digest_size=32).hexdigest()
    assert canonical_hash({"b": "é", "a": [1, 2]}) == expected


def test_the_manifest_comes_back_as_written(folder):
    manifest = open_dataset(str(folder)).manifest
    assert tables.parse_manifest(manifest.to_json(), "here") == manifest
    edit_manifest(folder, surprise=1)
    with pytest.raises(ValueError, match=r"not a dataset manifest: .*surprise"):
        open_dataset(str(folder))


def test_a_short_answer_of_the_store_is_an_error(folder):
    dataset = open_dataset(str(folder))
    size = (folder / FIRST_SHARD).stat().st_size
    with pytest.raises(OSError, match=f"asked for bytes 0-{size + 1}, got {size} of {size + 1}"):
        dataset.read_bytes(FIRST_SHARD, 0, size + 1)


@pytest.mark.parametrize("name", ["masked", "random_next", "masked_as_mask", "masked_kept"])
def test_verify_counts_what_the_shard_table_says(folder, name):
    rows = shard_rows(folder)
    rows[1] = dataclasses.replace(rows[1], **{name: getattr(rows[1], name) + 1})
    (folder / tables.SHARDS_TABLE).write_bytes(tables.shards_table(rows))
    edit_manifest(folder, groups=[dataclasses.asdict(group) for group in tables.group_totals(rows)])
    findings = [str(finding) for finding in verify_dataset(open_dataset(str(folder)))]
    expected = getattr(rows[1], name)
    assert [each for each in findings if rows[1].name in each] == [
        f"{folder}/{rows[1].name}: {name}: {expected - 1} in its blocks, {expected} in the shard table"
    ]


def test_a_manifest_that_is_shown_and_not_given_is_named(folder, monkeypatch):
    monkeypatch.setattr("pipeline.storage.folder.Folder.exists", lambda *_: True)
    (folder / tables.MANIFEST).unlink()
    with pytest.raises(FileNotFoundError, match=r"manifest.json is listed, but cannot be read"):
        open_dataset(str(folder))


def test_verify_compares_the_tokenizer_with_the_vocabulary(folder):
    data = (folder / "tokenizer.json").read_text().replace('"w7"', '"w7x"')
    (folder / "tokenizer.json").write_text(data)
    edit_manifest(folder, tokenizer_sha256=hashlib.sha256(data.encode()).hexdigest())
    said = f"{folder}/tokenizer.json: its tokens and ids are not those of vocab.txt"
    assert said in [str(finding) for finding in verify_dataset(open_dataset(str(folder)))]
