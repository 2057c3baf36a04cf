"""Manifests, tables and shards that somebody else made: refused with the place, unused.

Whatever lies is re-checksummed, so that only the check of the lie itself can find it.
"""

import dataclasses
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.shards import block_tables
from pipeline.shards import manifest as tables
from pipeline.shards.dataset import Dataset, open_dataset
from pipeline.shards.verify import verify_dataset
from tests.datasets import block_rows, edit_manifest, shard_rows, write_table

ROOT = Path(__file__).parents[2]
TRAIN = ((20, 9), (13, 17))
FIRST = "train/L8192/pass-00/shard-00000.tar"


@pytest.fixture
def folder(tmp_path, make_dataset):
    return make_dataset(tmp_path / "dataset", TRAIN, validation=(5,))


def refused(said):
    return pytest.raises(ValueError, match=said)


def write_tables(folder, rows, blocks):
    """Both tables, and a manifest whose totals and hashes are theirs."""
    hashes = [{"blocks_hash": table.digest()} for table in blocks]
    rows = [dataclasses.replace(row, **own) for row, own in zip(rows, hashes, strict=True)]
    (folder / tables.SHARDS_TABLE).write_bytes(tables.shards_table(rows))
    (folder / tables.BLOCKS_TABLE).write_bytes(block_tables.blocks_table(blocks))
    groups = [dataclasses.asdict(group) for group in tables.group_totals(rows)]
    edit_manifest(folder, groups=groups, root_hash=tables.root_hash(rows))


MANIFESTS = [
    *(("vocab_size", value) for value in (-1, 2**32 + 1, 10**30, "100", 99.5, True)),
    ("root_hash", "../.."),
    ("vocab_sha256", None),
    ("counters", []),
    ("settings", "a"),
    *(("special_ids mask", value) for value in (100, -1)),
    *(("groups", groups) for groups in ({"a": 1}, [1])),
    ("groups.split", "../x"),
    *(("groups.seq_len", value) for value in (0, 65_536)),
    *(("groups.instances", value) for value in (-5, 2**64)),
    ("groups.tokens", 2**40),
    ("groups.masked", 2**30),
    *(("groups.passes", value) for value in (0, 1001)),
]


@pytest.mark.parametrize(("place", "value"), MANIFESTS)
def test_a_manifest_that_cannot_be_is_refused(folder, place, value):
    owner, _, name = place.replace(" ", ".").rpartition(".")

    def edit(fields):
        held = fields[owner] if owner else fields
        (held[0] if isinstance(held, list) else held)[name] = value

    edit_manifest(folder, edit)
    found = re.escape(f": found '{str(value)[:9]}")
    said = "" if name == "groups" else f".*{place.removeprefix('groups.')}.*{found}"
    with refused(rf"manifest\.json: not a dataset manifest: {said}"):
        open_dataset(str(folder))


def test_the_largest_numbers_of_a_manifest_are_taken(folder):
    largest = {"passes": 1000, "seq_len": 65_535, "instances": 2**40, "masked_kept": 2**62}
    edit_manifest(folder, lambda fields: fields["groups"][0].update(largest), vocab_size=2**32)
    assert open_dataset(str(folder)).vocab_size == 2**32


UNFIT = [
    (lambda fields: fields["settings"].update(seed=1), "its settings have the hash"),
    (lambda fields: fields["special_ids"].update(mask=3), ".*special_ids: found"),
    (lambda fields: fields["special_ids"].update(eos=9), ".*special_ids: found"),
    (lambda fields: fields.update(special_ids=[]), ".*special_ids: found"),
    (lambda fields: fields.update(groups=fields["groups"][:1] * 2), ".*groups: found"),
]


@pytest.mark.parametrize(("edit", "said"), UNFIT)
def test_parts_of_a_manifest_that_do_not_fit_are_refused(folder, edit, said):
    edit_manifest(folder, edit)
    with refused(rf"manifest\.json: {said}"):
        open_dataset(str(folder))


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"format_version": 1e999}', '{"format_version": ' + "9" * 5000 + "}", "\x00"],
)
def test_json_made_to_break_parsers_is_refused(folder, text):
    (folder / tables.MANIFEST).write_text(text)
    with refused(r"manifest\.json: "):
        open_dataset(str(folder))


SHARDS = [
    ("name", "../../etc/shard-00000.tar"),
    ("name", "train/L8192/pass-00/../../../shard-00000.tar"), ("name", "/etc/passwd"),
    ("name", "s3://bucket/shard-00000.tar"), ("name", "train/L8192/pass-00/pass.json"),
    ("name", ""), ("name", FIRST + "\n"), ("split", "test"), ("num_bytes", 2**63 - 1),
    ("instances", None),
    *(("instances in 10240 bytes", number) for number in (2**50, 81)),
    ("seq_len", 0),
    *(("sha256", value) for value in ("x" * 64, "é" * 64)),
    *(("content_hash", value) for value in (None, "A" * 64)),
    *(("blocks_hash", "0" * digits) for digits in (31, 33)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), SHARDS)
def test_a_shard_row_that_cannot_be_is_refused(folder, name, value):
    rows = shard_rows(folder)
    rows[0] = dataclasses.replace(rows[0], **{name.partition(" ")[0]: value})
    write_table(folder, tables.SHARDS_TABLE, tables.shards_table(rows))
    said = re.escape(f"row 0, {name}: found {str(value)!r}"[:70])
    with refused(rf"shards\.parquet: {said}"):
        open_dataset(str(folder))


def test_a_shard_row_twice_or_a_pass_too_few_is_refused(folder):
    rows = shard_rows(folder)
    write_table(folder, tables.SHARDS_TABLE, tables.shards_table([*rows, rows[0]]))
    with refused(r"shards\.parquet: names: found '5 names', expected one for each of 6"):
        open_dataset(str(folder))
    later = [row for row in rows if row.pass_index]
    write_table(folder, tables.SHARDS_TABLE, tables.shards_table(later))
    with refused(r"shards\.parquet: passes of train L8192: found '\[1\]'"):
        open_dataset(str(folder))


def set_block(name, row, value):
    def edit(table):
        column = getattr(table, name).copy()
        column[row] = value
        return dataclasses.replace(table, **{name: column})

    return edit


BLOCKS = [
    (set_block("offset", 0, -512), "offset: found '[-512]'"),
    (set_block("offset", 1, 2**50), "offset: found"),
    (set_block("offset", 2, 2**63 - 1), "offset: found"),
    (set_block("offset", 2, 512), "blocks that overlap"),
    (set_block("offset", slice(None), [1536, 1024, 512]), "blocks that overlap"),
    (set_block("size", 0, 0), "size: found '[0]'"),
    (set_block("size", 0, -1), "size: found '[-1]'"),
    (set_block("size", 2, 2**40), "size: found"),
    (set_block("size", 2, 2**21), "the last byte: found"),
    (set_block("instances", 0, -8), "instances: found '[-8]'"),
    (set_block("instances", 0, 9), "instances: found '[9]'"),
    (set_block("instances", slice(None), [7, 8, 5]), "'a short block', expected 8 in every one"),
    (set_block("tokens", 0, 65_537), "tokens: found '[65537]'"),
    (set_block("tokens", 0, 3), "what the shard table says"),
]


@pytest.mark.parametrize(("edit", "said"), BLOCKS, ids=range(len(BLOCKS)))
def test_block_rows_that_cannot_be_are_refused(folder, edit, said):
    first, *others = block_rows(folder)
    write_tables(folder, shard_rows(folder), [edit(first), *others])
    dataset = open_dataset(str(folder))
    where = rf"blocks\.parquet: rows of {FIRST} do not describe it: "
    with refused(f"{where}.*{re.escape(said)}"):
        dataset.blocks(dataset.all_shards[0])


def parquet_of(columns, schema):
    sink = io.BytesIO()
    pq.write_table(pa.table(columns, schema=schema), sink, compression="zstd")
    return sink.getvalue()


def test_block_rows_with_holes_are_refused(folder):
    first, names = block_rows(folder)[0], block_tables.BLOCKS_SCHEMA.names
    columns = {name: getattr(first, name).tolist() for name in names[1:]}
    columns["crc32"][1] = None
    data = parquet_of({"shard": [0, 0, 0], **columns}, block_tables.BLOCKS_SCHEMA)
    with refused(f"blocks.parquet: rows of {FIRST} hold no crc32 in places"):
        block_tables.open_block_tables(data, shard_rows(folder)[:1], "blocks.parquet").table(0)


@pytest.mark.parametrize(
    ("column", "kind"), [("offset", pa.int32()), ("offset", pa.float64()), ("crc32", pa.string())]
)
def test_tables_of_other_types_are_refused(column, kind):
    schema = block_tables.BLOCKS_SCHEMA
    other = schema.set(schema.get_field_index(column), pa.field(column, kind))
    values = {each.name: pa.array([0, 1]).cast(each.type) for each in other}
    data = parquet_of(values, other)
    with refused(r"blocks.parquet: columns are \[.*expected \["):
        block_tables.open_block_tables(data, (), "blocks.parquet").table(0)


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
    """What is said of a dataset that is read and verified, and megabytes by which the peak grew."""
    command = [sys.executable, "-c", MEASURE, str(folder)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    said, grown = ran.stdout.splitlines()
    return said, float(grown)


@pytest.mark.processes
@pytest.mark.parametrize("name", [tables.SHARDS_TABLE, tables.BLOCKS_TABLE])
def test_a_table_of_millions_of_equal_rows_is_refused_unread(folder, name):
    is_first = name == tables.SHARDS_TABLE
    schema = tables.SHARDS_SCHEMA if is_first else block_tables.BLOCKS_SCHEMA
    values = ("a" * 64 if each.type == pa.string() else 1 for each in schema)
    scalars = [pa.scalar(value, each.type) for value, each in zip(values, schema, strict=True)]
    data = parquet_of([pa.repeat(scalar, 2_000_000) for scalar in scalars], schema)
    assert len(data) < 250_000
    write_table(folder, name, data)
    said, grown = read_in_a_process(folder)
    assert re.search(rf"{name}: .*(rows|columns): found", said)
    assert grown < 30  # 10; reading the table takes 96 and more


def test_strings_that_are_no_text_are_refused(folder):
    file = pq.read_table(folder / tables.SHARDS_TABLE)
    names = pa.array([b"\xff\xfe" + name.as_py().encode() for name in file["name"]], pa.binary())
    spoilt = pa.Array.from_buffers(pa.string(), len(names), names.buffers())
    table = file.set_column(file.schema.get_field_index("name"), "name", spoilt)
    write_table(folder, tables.SHARDS_TABLE, parquet_of(table.columns, tables.SHARDS_SCHEMA))
    with refused(r"shards\.parquet: a damaged Parquet table"):
        open_dataset(str(folder))


def verify(folder):
    return [str(each) for each in verify_dataset(open_dataset(str(folder)))]


def test_every_flipped_bit_of_a_shard_is_found(folder):
    path = folder / FIRST
    data = path.read_bytes()
    for at in range(0, len(data), 97):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        [finding] = verify(folder)
        assert finding.startswith(f"{folder}/{FIRST}: ")
        path.write_bytes(data)
    assert verify(folder) == []


def test_missing_foreign_and_swapped_shards_are_found(folder):
    path, other, foreign = (folder / FIRST.replace("00.tar", f"0{n}.tar") for n in range(3))
    data = path.read_bytes()
    path.unlink()
    assert verify(folder) == [f"{path}: missing"]
    shutil.copy(other, path)
    assert verify(folder) == [f"{path}: block 0: crc32 of bytes 512-2408 is not the block table's"]
    path.write_bytes(data)
    shutil.copy(path, foreign)
    assert verify(folder) == [f"{foreign}: foreign file: no table speaks of it; remove it"]


def test_a_shard_that_is_a_copy_of_another_is_found_where_the_tables_say_so_too(folder):
    rows, blocks = shard_rows(folder), block_rows(folder)
    copy = dataclasses.replace(rows[0], name=rows[1].name, seal=rows[1].seal)
    shutil.copy(folder / rows[0].name, folder / rows[1].name)
    write_tables(folder, [rows[0], copy, *rows[2:]], [blocks[0], blocks[0], *blocks[2:]])
    settings_hash = open_dataset(str(folder)).manifest.settings_hash
    data = tables.pass_json(shard_rows(folder)[:2], settings_hash)
    (folder / "train/L8192/pass-00/pass.json").write_bytes(data)
    said = f"its content is that of {FIRST}: a copy; rebuild the dataset"
    assert verify(folder) == [f"{folder}/{copy.name}: {said}"]


@pytest.mark.parametrize("name", ["tokens", "instances"])
def test_counts_of_each_block_are_compared_with_the_block_table(folder, monkeypatch, name):
    """Also where the sums of the shard hold, which is all that the table alone can be held to."""
    first = block_rows(folder)[0]
    one, other = getattr(first, name)[:2]
    changed = set_block(name, slice(2), [one - 1, other + 1])(first)
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


def test_totals_of_the_manifest_are_compared_with_the_tables(folder):
    edit_manifest(folder, lambda fields: fields["groups"][0].update(instances=58))
    said = "its totals are not those of the shard table"
    assert verify(folder) == [f"{folder}/manifest.json: {said}"]
