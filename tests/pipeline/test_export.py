"""Exports: golden instances are the reference's records; nothing half-written passes for one."""

import errno
import hashlib
import io
import json
import struct
import sys

import google_crc32c
import numpy as np
import pyarrow.parquet as pq
import pytest
import zstandard

from pipeline.export.parquet import METADATA
from pipeline.export.tfrecord import encode_examples
from pipeline.export.write_export import (
    EXPORT_FORMATS,
    FINISHED,
    STARTED,
    ExportFormat,
    plan_export,
    write_export,
)
from pipeline.shards.block import Block
from pipeline.shards.dataset import open_dataset, read_blocks
from pipeline.storage.faults import StorageError
from pipeline.storage.folder import Folder
from tests.datasets import write_dataset
from tests.loaded_python import run_python
from tests.pipeline.programs import run

SETTINGS = {"masked_lm_prob": 0.15, "max_predictions": None, "whole_word_masking": False}
GOLDEN = [("L64_P10_dupe1", 64, 10), ("L128_P20_dupe5", 128, 20), ("L512_P76_dupe5", 512, 76)]


def masked_crc32c(data):
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read_records(data):
    """The records of a TFRecord file, by its description alone; every checksum is looked at."""
    position = 0
    while position < len(data):
        length = data[position : position + 8]
        (size,) = struct.unpack("<Q", length)
        record = data[position + 12 : position + 12 + size]
        assert struct.unpack_from("<I", data, position + 8)[0] == masked_crc32c(length)
        assert struct.unpack_from("<I", data, position + 12 + size)[0] == masked_crc32c(record)
        yield record
        position += 16 + size


def read_varint(data, position):
    value, shift = 0, 0
    while True:
        value |= (data[position] & 0x7F) << shift
        shift, position = shift + 7, position + 1
        if data[position - 1] < 0x80:
            assert data[position - 1] or shift == 7  # as few bytes as there can be
            return value, position


def read_fields(data):
    """Fields of a message whose fields are all bytes."""
    position = 0
    while position < len(data):
        key, position = read_varint(data, position)
        assert key & 7 == 2
        size, position = read_varint(data, position)
        yield key >> 3, data[position : position + size]
        position += size


def read_example(record):
    """The features of a tf.train.Example, all of their values packed."""
    ((features_number, features),) = read_fields(record)
    found = {}
    for entry_number, entry in read_fields(features):
        assert (features_number, entry_number) == (1, 1)
        name, feature = (dict(read_fields(entry))[number] for number in (1, 2))
        ((kind, values),) = read_fields(feature)
        packed = dict(read_fields(values))[1]
        if kind == 2:
            found[name.decode()] = [*struct.unpack(f"<{len(packed) // 4}f", packed)]
            continue
        numbers, position = [], 0
        assert kind == 3
        while position < len(packed):
            number, position = read_varint(packed, position)
            numbers.append(number)
        found[name.decode()] = numbers
    return found


def reference_features(row, seq_len, max_predictions):
    """write_instance_to_example_files of create_pretraining_data.py, restated."""
    input_ids, segment_ids, positions, labels, is_random = row
    free, unused = seq_len - len(input_ids), max_predictions - len(positions)
    return {
        "input_ids": input_ids + [0] * free,
        "input_mask": [1] * len(input_ids) + [0] * free,
        "segment_ids": segment_ids + [0] * free,
        "masked_lm_positions": positions + [0] * unused,
        "masked_lm_ids": labels + [0] * unused,
        "masked_lm_weights": [1.0] * len(positions) + [0.0] * unused,
        "next_sentence_labels": [int(is_random)],
    }


def read_golden(folder, name):
    data = (folder / f"golden/serial_sample_{name}_seed12345.jsonl.zst").read_bytes()
    with zstandard.ZstdDecompressor().stream_reader(data) as lines:
        return [json.loads(line) for line in io.TextIOWrapper(lines, encoding="utf-8")]


def block_of(rows):
    """Rows of input_ids, segment_ids, positions, labels and is_random, as one block."""
    ids, segments, positions, labels, is_random = zip(*rows, strict=True)
    ends = [np.cumsum([0, *map(len, column)]).astype(np.int32) for column in (ids, positions)]
    token = np.uint16 if max(map(max, ids)) < 2**16 else np.uint32
    return Block(
        input_ids=np.concatenate(ids).astype(token),
        offsets=ends[0],
        segment_a_length=np.array([each.count(0) for each in segments], np.uint16),
        masked_lm_positions=np.concatenate(positions).astype(np.uint16),
        masked_lm_ids=np.concatenate(labels).astype(token),
        masked_offsets=ends[1],
        is_random_next=np.array(is_random, bool),
        document_a=np.arange(len(rows), dtype=np.uint64),
        document_b=np.arange(len(rows), dtype=np.uint64),
    )


def rows_of(dataset, split="train", seq_len=64):
    """The instances of a dataset in the order of its shards, as rows of golden/ are."""
    for number in range(dataset.num_passes(split, seq_len)):
        for shard in dataset.shards(split, seq_len, number):
            for block in read_blocks(dataset, shard):
                for row in range(block.num_instances):
                    one = block.slice(row, row + 1)
                    first = int(one.segment_a_length[0])
                    segments = [0] * first + [1] * (one.num_tokens - first)
                    columns = (one.input_ids, one.masked_lm_positions, one.masked_lm_ids)
                    ids, positions, labels = (each.tolist() for each in columns)
                    yield ids, segments, positions, labels, bool(one.is_random_next[0])


@pytest.fixture(scope="module")
def data(tmp_path_factory, make_block):
    """2 passes of 2 shards, the first of 2 blocks, at length 64, and validation of two lengths."""
    shards = {
        ("train", 64, 0, 0): [make_block(1024, seed=1), make_block(30, seed=7)],
        ("train", 64, 0, 1): [make_block(40, seed=10)],
        ("train", 64, 1, 0): [make_block(40, seed=10)],
        ("train", 64, 1, 1): [make_block(40, seed=11)],
        ("validation", 64, 0, 0): [make_block(20, seed=5)],
        ("validation", 128, 0, 0): [make_block(20, seed=6)],
    }
    return write_dataset(tmp_path_factory.mktemp("export") / "data", shards, 100, SETTINGS)


@pytest.fixture
def small(tmp_path, make_block):
    """Writes a dataset of one block of train."""

    def write(vocab_size=100, split="train", blocks=None, **settings):
        shards = {(split, 64, 0, 0): blocks or [make_block(9)]}
        return write_dataset(tmp_path / "data", shards, vocab_size, SETTINGS | settings)

    return write


def refused(said):
    return pytest.raises(ValueError, match=said)


def export(data, output, format_name="tfrecord", split="train", seq_len=64):
    """Exports from a dataset's folder to a folder or URL; the content of _export.json."""
    dataset = open_dataset(str(data))
    said = plan_export(dataset, format_name, split, seq_len)
    write_export(dataset, said, Folder(str(output)))
    return said


def files_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize(("name", "seq_len", "max_predictions"), GOLDEN)
def test_golden_instances_are_the_references_records(
    shared_data, tmp_path, name, seq_len, max_predictions
):
    golden = read_golden(shared_data, name)
    settings = SETTINGS | {"max_predictions": max_predictions}
    shards = {("train", seq_len, 0, 0): [block_of(golden)]}
    data = write_dataset(tmp_path / "data", shards, 30_522, settings)
    export(data, tmp_path / "out", seq_len=seq_len)
    records = read_records((tmp_path / "out/train-00000-of-00001.tfrecord").read_bytes())
    expected = [reference_features(row, seq_len, max_predictions) for row in golden]
    assert [*map(read_example, records)] == expected


def test_numbers_of_every_length_are_encoded():
    ids = [0, 1, *(each for bits in (7, 14, 21, 28) for each in (2**bits - 1, 2**bits)), 2**32 - 1]
    row = [ids, [0] * 5 + [1] * 6, [1, 10], [2_097_152, 1], True]
    (record,) = encode_examples(block_of([row]), 200, 130)
    assert hashlib.sha256(record).hexdigest()[:16] == "a12fff4efad1f988"
    assert read_example(record) == reference_features(row, 200, 130)


def test_a_file_a_shard_holds_its_instances_in_order(data, tmp_path):
    said = export(data, tmp_path / "out")
    names = [f"train-{number:05d}-of-00004.tfrecord" for number in range(4)]
    assert [*files_of(tmp_path / "out")] == [FINISHED, *names]
    assert json.loads((tmp_path / "out" / FINISHED).read_bytes()) == said
    assert [*said["files"]] == names
    shards = [f"train/L64/pass-0{p}/shard-0000{s}.tar" for p in (0, 1) for s in (0, 1)]
    assert [*said["files"].values()] == shards
    assert (said["instances"], said["max_predictions"]) == (1174, 10)
    files = [(tmp_path / "out" / name).read_bytes() for name in names]
    found = [read_example(record) for file in files for record in read_records(file)]
    assert found == [reference_features(row, 64, 10) for row in rows_of(open_dataset(str(data)))]


def test_a_store_takes_the_same_files(data, tmp_path):
    export(data, tmp_path / "out", split="validation")
    store = Folder("memory://export-test/out")
    export(data, store.url, split="validation")
    assert {name: store.read(name) for name in store.list()} == files_of(tmp_path / "out")
    store.remove(store.list())


def test_what_is_there_is_not_made_again(data, tmp_path):
    export(data, tmp_path)
    first = files_of(tmp_path)
    times = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    export(data, tmp_path)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times
    (tmp_path / STARTED).write_bytes(first[FINISHED])  # a kill at the very end leaves both
    export(data, tmp_path)
    assert files_of(tmp_path) == first
    (tmp_path / "train-00002-of-00004.tfrecord").unlink()
    export(data, tmp_path)
    assert files_of(tmp_path) == first


KILLED = """
import os, sys
from pathlib import Path
import pipeline.cli
from pipeline.command_line.program import run_program

renamed, replace = [], Path.replace

def die(path, target):
    renamed.append(target)
    if len(renamed) == {number}:
        os._exit(9)
    return replace(path, target)

Path.replace = die
sys.exit(run_program("program", "Tests.", pipeline.cli.COMMANDS, sys.argv[1:]))
"""


@pytest.mark.processes
@pytest.mark.parametrize("number", [1, 3, 6])
def test_a_killed_export_does_not_look_whole_and_is_continued(data, tmp_path, number):
    words = f"export {data} --format tfrecord --output {tmp_path}/out --seq_len 64".split()
    assert run_python(["-c", KILLED.format(number=number), *words]).returncode == 9
    left = files_of(tmp_path / "out")
    whole = export(data, tmp_path / "whole") and files_of(tmp_path / "whole")
    kept = {name: content for name, content in left.items() if not name.startswith((".", "_"))}
    assert len(kept) == max(0, number - 2)
    assert kept.items() <= whole.items()
    assert FINISHED not in left
    export(data, tmp_path / "out")
    assert files_of(tmp_path / "out") == whole


def test_a_damaged_shard_is_named_and_not_exported(data, tmp_path):
    dataset = open_dataset(str(data))
    shard = dataset.shards("validation", 64, 0)[0]
    path, table = data / shard.name, dataset.blocks(shard)
    sound = path.read_bytes()
    place = int(table.offset[0]) + 100
    path.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
    try:
        with refused(rf"{shard.name} block 0: damaged"):
            export(data, tmp_path / "out", split="validation")
    finally:
        path.write_bytes(sound)
    assert [*files_of(tmp_path / "out")] == [STARTED]


def test_instances_that_the_dataset_does_not_allow_are_refused(small, tmp_path):
    with refused(r"shard-00000.tar block 0: an instance of \d masked .* allow 1 to 2; "):
        export(small(max_predictions=2), tmp_path / "out")
    with refused(r"block 0, instance \d+: token id \d+ should be below 90"):
        export(small(vocab_size=90), tmp_path / "out2")


def plan(data, *choice):
    return plan_export(open_dataset(str(data)), "parquet", *choice)


def test_a_length_is_chosen(data, small):
    said = r"has validation instances of the lengths \[64, 128\]; give one of them as --seq_len"
    with refused(said):
        plan(data, "validation", None)
    with refused("no train instances of seq_len 128; the dataset has train L64, validation L64, v"):
        plan(data, "train", 128)
    with refused("data has no validation instances"):
        plan(small(), "validation", None)
    assert plan(data, "train", None)["seq_len"] == 64


@pytest.mark.parametrize("name", ["mine.txt", "validation-00000-of-00001.tfrecord"])
def test_a_folder_of_something_else_is_refused(data, tmp_path, name):
    (tmp_path / name).write_text("mine")
    with refused(f"holds {name}, which is not of this export; give an empty --output"):
        export(data, tmp_path, split="validation")
    assert files_of(tmp_path) == {name: b"mine"}


def test_an_export_of_another_dataset_is_not_continued(data, small, tmp_path):
    export(small(split="validation"), tmp_path / "out", split="validation")
    before = files_of(tmp_path / "out")
    with refused(r"_export.json is of another export: root_hash is '.*', now '.*'; "):
        export(data, tmp_path / "out", split="validation")
    assert files_of(tmp_path / "out") == before


@pytest.mark.processes
def test_the_command_says_how_the_files_are_read(data, tmp_path, capsys):
    assert run("export", data, "--format", "tfrecord", "--output", tmp_path / "out") == 0
    assert capsys.readouterr().out == (
        f"{tmp_path}/out: 4 files, 1,174 instances\n"
        f"run_pretraining.py --input_file='{tmp_path}/out/*.tfrecord' --max_seq_length=64"
        " --max_predictions_per_seq=10\n"
    )
    assert run("export", data, "--format", "parquet", "--output", "memory://said") == 0
    usage = "datasets.load_dataset('parquet', data_files='memory://said/*.parquet')"
    assert capsys.readouterr().out.endswith(f"\n{usage}\n")


@pytest.mark.processes
def test_a_missing_package_is_named_before_anything_is_written(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    assert run("export", data, "--format", "tfrecord", "--output", tmp_path / "out") == 2
    assert "the package google_crc32c is not installed" in (said := capsys.readouterr().err)
    assert said.endswith("pip install -e '.[tfrecord]'\n")
    assert not (tmp_path / "out").exists()


def failing(error):
    """A format whose files cannot be written."""

    def write_file(file, blocks, plan):
        raise error

    return ExportFormat(write_file, "")


@pytest.mark.processes
def test_ctrl_c_says_that_the_same_command_continues(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(EXPORT_FORMATS, "tfrecord", failing(KeyboardInterrupt()))
    assert run("export", data, "--format", "tfrecord", "--output", tmp_path / "out") == 130
    said = "interrupted; what is finished is kept, the same command continues"
    assert said in capsys.readouterr().err
    assert [*files_of(tmp_path / "out")] == [STARTED]


def test_a_full_disk_is_named(data, tmp_path, monkeypatch):
    monkeypatch.setitem(EXPORT_FORMATS, "tfrecord", failing(OSError(errno.ENOSPC, "No space left")))
    said = r"no room for train-00000-of-00004.tfrecord; let TMPDIR name a folder with more room"
    with pytest.raises(StorageError, match=said):
        export(data, tmp_path)


def test_parquet_holds_the_instances_without_padding(data, tmp_path):
    said = export(data, tmp_path, "parquet")
    files = sorted(tmp_path.glob("*.parquet"))
    tables = [pq.ParquetFile(file).read(use_threads=False) for file in files]
    names = ["input_ids", "segment_ids", "masked_lm_positions", "masked_lm_ids"]
    names.append("next_sentence_labels")
    dataset = open_dataset(str(data))
    expected = [dict(zip(names, row, strict=True)) for row in rows_of(dataset)]
    assert [row for table in tables for row in table.to_pylist()] == expected
    schema = pq.read_schema(tmp_path / "train-00003-of-00004.parquet")
    assert [str(each.type) for each in schema] == [*["list<element: int32 not null>"] * 4, "int32"]
    described = {name: value for name, value in said.items() if name != "files"}
    assert json.loads(schema.metadata[METADATA]) == described
    assert (said["root_hash"], said["settings"]) == (dataset.manifest.root_hash, SETTINGS)


def test_parquet_has_a_row_group_for_many_blocks(small, tmp_path, make_block):
    blocks = [*(make_block(1024, seed=seed, max_tokens=9) for seed in range(17)), make_block(5)]
    export(small(blocks=blocks), tmp_path / "out", "parquet")
    metadata = pq.read_metadata(tmp_path / "out/train-00000-of-00001.parquet")
    assert [metadata.row_group(number).num_rows for number in range(2)] == [16 * 1024, 1029]
    assert metadata.row_group(0).column(0).compression == "ZSTD"
