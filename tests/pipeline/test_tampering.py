"""Manifests, tables and shards that somebody else made: refused with the place before they are used.

Whatever lies is re-checksummed, so that only the check of the lie itself can find it.
"""

import dataclasses
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.shards import block_tables as block_table_files
from pipeline.shards import manifest as tables
from pipeline.shards.dataset import Dataset, open_dataset
from pipeline.shards.verify import verify_dataset
from tests.datasets import edit_manifest

ROOT = Path(__file__).parents[2]
TRAIN = ((20, 9), (13, 17))
FIRST = "train/L8192/pass-00/shard-00000.tar"


@pytest.fixture
def folder(tmp_path, make_dataset):
    return make_dataset(tmp_path / "dataset", TRAIN, validation=(5,))


def shard_rows(folder):
    return tables.parse_shards_table((folder / tables.SHARDS_TABLE).read_bytes(), "here")


def block_tables(folder):
    rows = shard_rows(folder)
    opened = block_table_files.open_block_tables(
        (folder / tables.BLOCKS_TABLE).read_bytes(), rows, "here"
    )
    return [opened.table(row) for row in range(len(rows))]


def write_tables(folder, rows, blocks):
    """Both tables, and a manifest whose totals and hashes are theirs."""
    rows = [
        dataclasses.replace(row, blocks_hash=table.digest())
        for row, table in zip(rows, blocks, strict=True)
    ]
    (folder / tables.SHARDS_TABLE).write_bytes(tables.shards_table(rows))
    (folder / tables.BLOCKS_TABLE).write_bytes(block_table_files.blocks_table(blocks))
    groups = [dataclasses.asdict(group) for group in tables.group_totals(rows)]
    edit_manifest(folder, groups=groups, root_hash=tables.root_hash(rows))


def write_table(folder, name, data):
    """One table, and a manifest that speaks of it."""
    (folder / name).write_bytes(data)
    edit_manifest(folder)


def set_group(name, value):
    return lambda fields: fields["groups"][0].update({name: value})


def set_special(name, value):
    return lambda fields: fields["special_ids"].update({name: value})


MANIFESTS = {
    "a negative size": (lambda fields: fields.update(vocab_size=-1), "vocab_size: found '-1'"),
    "a huge size": (lambda fields: fields.update(vocab_size=10**30), "vocab_size: found '1000"),
    "a size that is no number": (
        lambda fields: fields.update(vocab_size="100"),
        "vocab_size: found '100'",
    ),
    "a fraction": (lambda fields: fields.update(vocab_size=99.5), "vocab_size: found '99.5'"),
    "true": (lambda fields: fields.update(vocab_size=True), "vocab_size: found 'True'"),
    "a hash that is none": (
        lambda fields: fields.update(root_hash="../.."),
        "root_hash: found '../..'",
    ),
    "a hash that is null": (
        lambda fields: fields.update(vocab_sha256=None),
        "vocab_sha256: found 'None'",
    ),
    "counters of another kind": (lambda fields: fields.update(counters=[]), "counters: found '[]'"),
    "settings of another kind": (lambda fields: fields.update(settings="a"), "settings: found 'a'"),
    "settings that were changed": (
        lambda fields: fields["settings"].update(seed=1),
        "its settings have the hash",
    ),
    "a special id past the vocabulary": (set_special("mask", 100), "special_ids mask: found '100'"),
    "one id for two": (set_special("mask", 3), "special_ids: found"),
    "another special name": (set_special("eos", 9), "special_ids: found"),
    "special ids of another kind": (
        lambda fields: fields.update(special_ids=[]),
        "special_ids: found",
    ),
    "groups of another kind": (
        lambda fields: fields.update(groups={"a": 1}),
        "not a dataset manifest",
    ),
    "a group of another kind": (lambda fields: fields.update(groups=[1]), "not a dataset manifest"),
    "a group twice": (
        lambda fields: fields.update(groups=fields["groups"][:1] * 2),
        "groups: found",
    ),
    "another split": (set_group("split", "../x"), "split: found '../x'"),
    "a length of 0": (set_group("seq_len", 0), "seq_len: found '0'"),
    "a huge length": (set_group("seq_len", 10**9), "seq_len: found '1000000000'"),
    "negative instances": (set_group("instances", -5), "instances: found '-5'"),
    "instances beyond int64": (set_group("instances", 2**64), "instances: found"),
    "more tokens than fit": (set_group("tokens", 2**40), "tokens: found"),
    "more masked than tokens": (set_group("masked", 2**30), "masked: found"),
    "passes without end": (set_group("passes", 10**9), "passes of a group: found"),
}


@pytest.mark.parametrize(("edit", "said"), MANIFESTS.values(), ids=MANIFESTS)
def test_a_manifest_that_cannot_be_is_refused(folder, edit, said):
    edit_manifest(folder, edit)
    with pytest.raises(ValueError, match=r"manifest\.json: ") as caught:
        open_dataset(str(folder))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"format_version": 1e999}',
        '{"format_version": ' + "9" * 5000 + "}",
        "\x00",
        '"\\ud800"',
    ],
)
def test_json_made_to_break_parsers_is_refused(folder, text):
    (folder / tables.MANIFEST).write_text(text)
    with pytest.raises(ValueError, match=r"manifest\.json: "):
        open_dataset(str(folder))


SHARDS = {
    "a name that leaves": ({"name": "../../etc/shard-00000.tar"}, "name: found"),
    "a name that leaves from within": (
        {"name": "train/L8192/pass-00/../../../shard-00000.tar"},
        "name: found",
    ),
    "an absolute name": ({"name": "/etc/passwd"}, "name: found"),
    "a URL": ({"name": "s3://bucket/shard-00000.tar"}, "name: found"),
    "a name of another file": ({"name": "train/L8192/pass-00/pass.json"}, "name: found"),
    "an empty name": ({"name": ""}, "name: found"),
    "a name with a line end": ({"name": FIRST + "\n"}, "name: found"),
    "another split": ({"split": "test"}, "split: found 'test'"),
    "negative bytes": ({"num_bytes": -1}, "num_bytes: found '-1'"),
    "huge bytes": ({"num_bytes": 2**63 - 1}, "num_bytes: found"),
    "more bytes than a shard has": ({"num_bytes": 2**36 + 1}, "num_bytes: found '68719476737'"),
    "more instances than fit": (
        {"instances": 2**50},
        "instances in 10240 bytes: found '1125899906842624'",
    ),
    "one block more than fits": (
        {"instances": 81},
        "instances in 10240 bytes: found '81', expected a whole number from 0",
    ),
    "negative instances": ({"instances": -20}, "instances: found '-20'"),
    "more tokens than fit": ({"tokens": 2**60}, "tokens: found"),
    "more masked than tokens": ({"masked": 2**30}, "masked: found"),
    "more random than pairs": ({"random_next": 21}, "random_next: found '21'"),
    "a length of 0": ({"seq_len": 0}, "seq_len: found '0'"),
    "a negative pass": ({"pass_index": -1}, "pass_index: found '-1'"),
    "a hash that is none": ({"sha256": "x" * 64}, "sha256: found"),
    "a hash that is null": ({"content_hash": None}, "content_hash: found 'None'"),
    "a hash in capitals": ({"content_hash": "A" * 64}, "content_hash: found 'AAAA"),
    "a hash of other characters": ({"sha256": "é" * 64}, "sha256: found 'éééé"),
    "a hash that is too short": ({"blocks_hash": "0" * 31}, "blocks_hash: found '0000"),
    "a hash that is too long": ({"blocks_hash": "0" * 33}, "blocks_hash: found '0000"),
    "a null": ({"instances": None}, "instances: found 'None'"),
}


@pytest.mark.parametrize(("change", "said"), SHARDS.values(), ids=SHARDS)
def test_a_shard_row_that_cannot_be_is_refused(folder, change, said):
    rows = shard_rows(folder)
    rows[0] = dataclasses.replace(rows[0], **change)
    write_table(folder, tables.SHARDS_TABLE, tables.shards_table(rows))
    with pytest.raises(ValueError, match=r"shards\.parquet: row 0, ") as caught:
        open_dataset(str(folder))
    assert said in str(caught.value)


def test_a_shard_row_twice_or_a_pass_too_few_is_refused(folder):
    rows = shard_rows(folder)
    write_table(folder, tables.SHARDS_TABLE, tables.shards_table([*rows, rows[0]]))
    with pytest.raises(
        ValueError, match=r"shards\.parquet: names: found '5 names', expected one for each of 6"
    ):
        open_dataset(str(folder))
    write_table(
        folder, tables.SHARDS_TABLE, tables.shards_table([row for row in rows if row.pass_index])
    )
    with pytest.raises(ValueError, match=r"shards\.parquet: passes of train L8192: found '\[1\]'"):
        open_dataset(str(folder))


def set_block(name, row, value):
    def edit(table):
        column = getattr(table, name).copy()
        column[row] = value
        return dataclasses.replace(table, **{name: column})

    return edit


BLOCKS = {
    "a negative offset": (set_block("offset", 0, -512), "offset: found '[-512]'"),
    "an offset past the file": (set_block("offset", 1, 2**50), "offset: found"),
    "offsets that overflow": (set_block("offset", 2, 2**63 - 1), "offset: found"),
    "blocks that overlap": (
        lambda t: dataclasses.replace(t, offset=t.offset * 0 + 512),
        "blocks that overlap",
    ),
    "blocks in another order": (
        lambda t: dataclasses.replace(t, offset=t.offset[::-1].copy()),
        "blocks that overlap",
    ),
    "a size of nothing": (set_block("size", 0, 0), "size: found '[0]'"),
    "a negative size": (set_block("size", 0, -1), "size: found '[-1]'"),
    "a huge size": (set_block("size", 2, 2**40), "size: found"),
    "a size past the file": (set_block("size", 2, 2**21), "the last byte: found"),
    "negative instances": (set_block("instances", 0, -8), "instances: found '[-8]'"),
    "more instances than a block has": (set_block("instances", 0, 9), "instances: found '[9]'"),
    "more tokens than a block has": (set_block("tokens", 0, 65_537), "tokens: found '[65537]'"),
    "a short block": (
        lambda t: dataclasses.replace(t, instances=np.array([7, 8, 5])),
        "found 'a short block', expected 8 in every one but the last",
    ),
    "sums of another shard": (set_block("tokens", 0, 3), "what the shard table says"),
}


@pytest.mark.parametrize(("edit", "said"), BLOCKS.values(), ids=BLOCKS)
def test_block_rows_that_cannot_be_are_refused(folder, edit, said):
    first, *others = block_tables(folder)
    write_tables(folder, shard_rows(folder), [edit(first), *others])
    dataset = open_dataset(str(folder))
    with pytest.raises(
        ValueError, match=rf"blocks\.parquet: rows of {FIRST} do not describe it: "
    ) as caught:
        dataset.blocks(dataset.all_shards[0])
    assert said in str(caught.value)


def parquet_of(columns, schema):
    sink = io.BytesIO()
    pq.write_table(pa.table(columns, schema=schema), sink, compression="zstd")
    return sink.getvalue()


def test_block_rows_with_holes_are_refused(folder):
    first, *_ = block_tables(folder)
    columns = {
        name: getattr(first, name).tolist()
        for name in ("offset", "size", "instances", "tokens", "crc32")
    }
    columns["crc32"][1] = None
    rows = shard_rows(folder)
    data = parquet_of({"shard": [0, 0, 0], **columns}, block_table_files.BLOCKS_SCHEMA)
    opened = block_table_files.open_block_tables(data, rows[:1], "blocks.parquet")
    with pytest.raises(
        ValueError, match=f"blocks.parquet: rows of {FIRST} hold no crc32 in places"
    ):
        opened.table(0)


@pytest.mark.parametrize(
    ("column", "kind"), [("offset", pa.int32()), ("offset", pa.float64()), ("crc32", pa.string())]
)
def test_tables_of_other_types_are_refused(folder, column, kind):
    schema = block_table_files.BLOCKS_SCHEMA
    other = schema.set(schema.get_field_index(column), pa.field(column, kind))
    values = {field.name: pa.array([0, 1], field.type) for field in schema}
    values[column] = pa.array([0, 1]).cast(kind)
    with pytest.raises(ValueError, match=r"blocks.parquet: columns are \[.*expected \["):
        block_table_files.open_block_tables(parquet_of(values, other), [], "blocks.parquet").table(
            0
        )


MEASURE = """
import sys
from pipeline.shards.dataset import open_dataset
from pipeline.shards.verify import verify_dataset
from tests.peak_memory import peak_megabytes

before = peak_megabytes()
try:
    dataset = open_dataset(sys.argv[1])
    dataset.blocks(dataset.all_shards[0])
    print(*verify_dataset(dataset))
except ValueError as error:
    print(error)
print(peak_megabytes() - before)
"""


def read_in_a_process(folder):
    """What is said of a dataset that is opened, read and verified, and by how many megabytes the peak grew."""
    command = [sys.executable, "-c", MEASURE, str(folder)]
    said, grown = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return said, float(grown)


@pytest.mark.processes
@pytest.mark.parametrize("name", [tables.SHARDS_TABLE, tables.BLOCKS_TABLE])
def test_a_table_of_millions_of_equal_rows_is_refused_unread(folder, name):
    schema = (
        tables.SHARDS_SCHEMA if name == tables.SHARDS_TABLE else block_table_files.BLOCKS_SCHEMA
    )
    count = 2_000_000
    columns = {field.name: pa.repeat(pa.scalar("a" * 64 if field.type == pa.string() else 1).cast(field.type), count)
               for field in schema}  # fmt: skip
    data = parquet_of(columns, schema)
    assert len(data) < 250_000
    del columns
    write_table(folder, name, data)
    said, grown = read_in_a_process(folder)
    assert re.search(rf"{name}: .*(rows|columns): found", said)
    assert grown < 30  # 10; reading the table takes 96 and more


def test_strings_that_are_no_text_are_refused(folder):
    data = tables.shards_table(shard_rows(folder))
    file = pq.read_table(io.BytesIO(data))
    names = pa.array([b"\xff\xfe" + name.as_py().encode() for name in file["name"]], pa.binary())
    buffers = names.buffers()
    spoilt = pa.Array.from_buffers(pa.string(), len(names), buffers)
    table = file.set_column(file.schema.get_field_index("name"), "name", spoilt)
    write_table(folder, tables.SHARDS_TABLE, parquet_of(table.columns, tables.SHARDS_SCHEMA))
    with pytest.raises(ValueError, match=r"shards\.parquet: a damaged Parquet table"):
        open_dataset(str(folder))


# What verify finds in shards.


def verify(folder):
    return [str(each) for each in verify_dataset(open_dataset(str(folder)))]


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_every_flipped_bit_of_a_shard_is_found(folder):
    path = folder / FIRST
    data = path.read_bytes()
    for at in range(0, len(data), 61):
        flip(path, at)
        [finding] = verify(folder)
        assert finding.startswith(f"{folder}/{FIRST}: ")
        path.write_bytes(data)
    assert verify(folder) == []


def test_truncated_missing_foreign_and_swapped_shards_are_found(folder):
    path, other = folder / FIRST, folder / "train/L8192/pass-00/shard-00001.tar"
    data = path.read_bytes()
    path.write_bytes(data[:-512])
    assert verify(folder) == [
        f"{path}: {len(data) - 512} bytes, expected {len(data)}: truncated or foreign"
    ]
    path.unlink()
    assert verify(folder) == [f"{path}: missing"]
    shutil.copy(other, path)
    assert verify(folder) == [f"{path}: block 0: crc32 of bytes 512-2408 is not the block table's"]
    path.write_bytes(data)
    shutil.copy(path, folder / "train/L8192/pass-00/shard-00002.tar")
    assert verify(folder) == [
        f"{folder}/train/L8192/pass-00/shard-00002.tar: foreign file: no table speaks of it; remove it"
    ]


def test_a_shard_that_is_a_copy_of_another_is_found_where_the_tables_say_so_too(folder):
    rows, blocks = shard_rows(folder), block_tables(folder)
    copy = dataclasses.replace(rows[0], name=rows[1].name, seal=rows[1].seal)
    shutil.copy(folder / rows[0].name, folder / rows[1].name)
    write_tables(folder, [rows[0], copy, *rows[2:]], [blocks[0], blocks[0], *blocks[2:]])
    members = shard_rows(folder)[:2]
    manifest = json.loads((folder / tables.MANIFEST).read_text())
    (folder / "train/L8192/pass-00/pass.json").write_bytes(
        tables.pass_json(members, manifest["settings_hash"])
    )
    assert verify(folder) == [
        f"{folder}/{copy.name}: its content is that of {FIRST}: a copy; rebuild the dataset"
    ]


@pytest.mark.parametrize("name", ["tokens", "instances"])
def test_counts_of_each_block_are_compared_with_the_block_table(folder, monkeypatch, name):
    """Also where the sums of the shard hold, which is all that the table alone can be held to."""
    first = block_tables(folder)[0]
    column = getattr(first, name).copy()
    column[0], column[1] = column[0] - 1, column[1] + 1
    changed = dataclasses.replace(first, **{name: column})
    blocks = Dataset.blocks
    monkeypatch.setattr(
        Dataset, "blocks", lambda own, shard: changed if shard.name == FIRST else blocks(own, shard)
    )
    found = f"{first.instances[0]} instances of {first.tokens[0]} tokens"
    said = f"{changed.instances[0]} of {changed.tokens[0]}"
    assert verify(folder) == [f"{folder}/{FIRST}: block 0: {found}, the block table says {said}"]


@pytest.mark.processes
def test_a_shard_of_any_size_is_not_read(folder):
    with (folder / FIRST).open("r+b") as file:
        file.truncate(2**36)  # of holes
    said, grown = read_in_a_process(folder)
    assert re.fullmatch(rf"\S+{FIRST}: {2**36} bytes, expected \d+: truncated or foreign", said)
    assert grown < 30


def test_a_changed_vocabulary_is_found(folder):
    flip(folder / "vocab.txt", 30)
    [finding] = verify(folder)
    assert finding.startswith(
        f"{folder}/vocab.txt: is not the file that manifest.json speaks of: its sha256 is "
    )


def test_totals_of_the_manifest_are_compared_with_the_tables(folder):
    edit_manifest(folder, set_group("instances", 58))
    assert verify(folder) == [
        f"{folder}/manifest.json: its totals are not those of the shard table"
    ]
