"""Passes are published when they are complete, and withdrawn when they no longer are."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pipeline.jobs.exchange import plan_tasks
from pipeline.jobs.shard_records import ShardRecord, format_record, record_name
from pipeline.shards.dataset import open_dataset
from pipeline.shards.growing import RECORDS, open_growing
from pipeline.shards.records import BlockTable
from pipeline.shards.seal import NOTHING
from pipeline.shards.verify import verify_dataset
from pipeline.stages import publish
from pipeline.stages.block_spool import open_block_spool
from pipeline.stages.publish import (
    PassPublisher,
    list_places,
    planned_groups,
    publish_dataset,
    read_records,
    remove_unfinished,
    seals_of,
)
from pipeline.storage.folder import Folder
from pipeline.tokens.buckets import Bucket, BucketContents
from tests.counting import empty_store
from tests.pipeline.test_build import build

PLACES = (("train", 0), ("train", 1), ("validation", 0))
BUCKETS = [Bucket(*place, 2, bytes(16), b"\xff" * 16) for place in PLACES]


@pytest.fixture
def whole(tmp_path, make_dataset):
    return open_dataset(str(make_dataset(tmp_path / "whole", ((20, 9), (13, 17)), validation=(5,))))


@pytest.fixture
def tasks(whole):
    seals = {(shard.split, int(shard.name[-9:-4])): shard.seal for shard in whole.all_shards}
    contents = {each.name: BucketContents(seals[each.split, each.number], 1, 1) for each in BUCKETS}
    return plan_tasks(BUCKETS, [8192], 2, contents)


@pytest.fixture
def spool():
    with open_block_spool() as opened:
        yield opened


def finish(whole, folder: Folder, name: str) -> None:
    [shard] = [each for each in whole.all_shards if each.name == name]
    record = ShardRecord(whole.manifest.settings_hash, shard, whole.blocks(shard))
    folder.write(name, whole.read_file(name))
    folder.write(record_name(name), format_record(record))


def published(folder: Path) -> list[str]:
    found = folder.glob("*/L8192/pass-*/pass.json")
    return sorted(str(path.parent.relative_to(folder)) for path in found)


def test_each_pass_when_its_last_shard_is_finished(whole, tasks, spool, tmp_path):
    folder = tmp_path / "data"
    publisher = PassPublisher(Folder(str(folder)), tasks, {}, whole.manifest.settings_hash, spool)
    train, validation = "train/L8192/pass-00", "validation/L8192/pass-00"
    steps = [
        ("train/L8192/pass-01/shard-00000.tar", []),
        (f"{train}/shard-00000.tar", []),
        (f"{validation}/shard-00000.tar", [validation]),
        (f"{train}/shard-00001.tar", [train, validation]),
    ]
    for count, (name, there) in enumerate(steps, start=1):
        finish(whole, Folder(str(folder)), name)
        assert publisher.look() == count
        assert published(folder) == there
        for each in there:
            assert (folder / RECORDS / each / "blocks.parquet").read_bytes().startswith(b"PAR1")
    assert publisher.look() == 4
    assert sorted(publisher.built) == sorted(name for name, _ in steps[1:])


def test_a_pass_that_lost_a_shard_is_withdrawn_and_published_again(whole, tasks, spool, tmp_path):
    folder = tmp_path / "data"
    settings_hash = whole.manifest.settings_hash
    first = PassPublisher(Folder(str(folder)), tasks, {}, settings_hash, spool)
    for task in tasks:
        finish(whole, Folder(str(folder)), task.name)
    first.look()
    assert len(published(folder)) == 3
    lost = "train/L8192/pass-01/shard-00001.tar"
    (folder / record_name(lost)).unlink()
    built = {name: rows for name, rows in first.built.items() if name != lost}
    again = PassPublisher(Folder(str(folder)), tasks, built, settings_hash, spool)
    assert published(folder) == ["train/L8192/pass-00", "validation/L8192/pass-00"]
    assert again.look() == 0
    finish(whole, Folder(str(folder)), lost)
    assert again.look() == 1
    assert len(published(folder)) == 3


def test_every_record_is_read_once_and_removed_once(whole, tasks, spool):
    store = empty_store()
    folder = Folder("counted://data")
    for task in tasks:
        finish(whole, folder, task.name)
    store.requests.clear()
    built = read_records(folder, seals_of(tasks), whole.manifest.settings_hash, spool)
    assert sorted(built) == [shard.name for shard in whole.all_shards]
    assert store.kinds() == {"find": 6, "cat_file": 5}, "three passes: their shards, their records"
    store.requests.clear()
    publish_dataset(folder, built, whole.manifest)
    assert store.count("cat_file") == 0, "the blocks are on this machine"
    assert store.count("find") == 1, "the records; neither the shards nor the token parts"
    assert store.count("rm_file", ".tar.json") == 5
    assert store.count("rm_file") == 5 + 2, "the plan and the settings, listed or not"
    for name in ("blocks.parquet", "shards.parquet", "train/L8192/pass-01/pass.json"):
        assert folder.read(name) == whole.read_file(name), name


def test_only_passes_that_lack_shards_are_listed_while_the_job_runs(whole, tasks, spool):
    store = empty_store()
    folder = Folder("counted://data")
    publisher = PassPublisher(folder, tasks, {}, whole.manifest.settings_hash, spool)
    first = [task for task in tasks if "pass-00" in task.name]
    for task in first:
        finish(whole, folder, task.name)
    assert publisher.look() == len(first) == 3
    store.requests.clear()
    assert publisher.look() == 3
    assert store.requests == [("find", "/data/_tasks/train/L8192/pass-01")]


def test_block_tables_come_back_from_the_spool_in_any_order(spool):
    def table(*offsets):
        numbers = np.array(offsets, np.int64)
        crc32 = np.array([2**32 - 1 - offset for offset in offsets], np.uint32)
        return BlockTable(numbers, numbers + 1, numbers + 2, 2**40 * numbers, crc32)

    tables = [table(512, 4096), table(), table(7)]
    readers = [spool.keep(each) for each in tables]
    for number in (2, 0, 1):
        found = readers[number]()
        assert found.offset.dtype == np.int64
        assert found.crc32.dtype == np.uint32
        for name, column in vars(tables[number]).items():
            assert getattr(found, name).tolist() == column.tolist(), name
    assert readers[0]().digest() == tables[0].digest()


def test_folders_are_listed_by_names_of_the_dataset(tmp_path):
    folder = Folder(str(tmp_path))
    folder.write("train/L128/pass-00/shard-00000.tar", b"abc")
    folder.write("train/L128/pass-01/shard-00000.tar", b"")
    folder.write("tokens/0-00000.tokens", b"not asked for")
    assert list_places(folder, ["train/L128/pass-00", "train/L128/pass-02"]) == {
        "train/L128/pass-00/shard-00000.tar": 3
    }


def test_the_plan_has_what_is_there_and_what_will_be(tasks, whole):
    built = {shard.name: (shard, partial(whole.blocks, shard)) for shard in whole.all_shards}
    contents = {bucket.name: BucketContents(NOTHING, 0, 0) for bucket in BUCKETS}
    more = plan_tasks(BUCKETS[:2], [512], 3, contents)
    groups = planned_groups(more, built)
    counts = [(each.split, each.seq_len, each.passes, each.shards) for each in groups]
    assert counts == [("train", 512, 3, 6), ("train", 8192, 2, 4), ("validation", 8192, 1, 1)]
    assert {each.instances for each in groups} == {0}
    assert planned_groups(tasks, {}) == planned_groups(tasks, built)


def test_a_kill_between_two_manifests_loses_no_shard_and_no_setting(
    corpus, vocab_file, tmp_path, monkeypatch, capsys
):
    """The first manifest is gone, the second not there yet: records say what the first one said."""
    output = tmp_path / "data"
    assert build(corpus, vocab_file, output) == 0
    finished = {path: path.stat().st_mtime_ns for path in output.rglob("shard-*.tar")}
    passes = {path: path.read_bytes() for path in output.glob("train/L64/*/pass.json")}

    def die(*_):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(publish, "pass_json", die)
        with pytest.raises(RuntimeError, match="killed"):
            build(corpus, vocab_file, output, "--passes", 3)
    assert not (output / "manifest.json").exists()
    assert build(corpus, vocab_file, output, "--passes", 3, "--seed", 5) == 2
    assert "seed" in capsys.readouterr().err
    assert build(corpus, vocab_file, output, "--passes", 3) == 0
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert {path: path.read_bytes() for path in passes} == passes
    assert verify_dataset(open_dataset(str(output))) == []
    assert open_growing(str(output)).num_passes("train", 64) == 3
    assert not (output / RECORDS).exists()


def test_an_unfinished_build_begins_again_and_a_finished_dataset_stays(whole, tasks, tmp_path):
    """Whatever a store does not show for a moment."""
    folder = Folder(str(tmp_path / "data"))
    for task in tasks:
        finish(whole, folder, task.name)
    folder.write("train/notes.txt", b"of a person")
    folder.write("vocab.txt", b"")
    remove_unfinished(folder)
    assert sorted(folder.list()) == ["train/notes.txt", "vocab.txt"]
    before = whole.folder.list()
    remove_unfinished(whole.folder)
    whole.folder.write(f"{RECORDS}/plan.json", b"")
    remove_unfinished(whole.folder)
    assert before.items() <= whole.folder.list().items()
