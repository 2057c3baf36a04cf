"""The cache of shards: one process fetches a file and all read it; damage loses no instance.

Run as a program, this file is one of the processes of a node that read a dataset.
"""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path
from threading import Event
from unittest.mock import Mock

import pytest

from pipeline.shards.dataset import Dataset, open_dataset
from pipeline.shards.manifest import BLOCKS_TABLE
from tests.trainer.test_fetch import EVERYTHING, Read
from trainer.stream.reading import cache as cache_module
from trainer.stream.reading.block_reader import BlockReader
from trainer.stream.reading.cache import MIN_CACHE_BYTES, CacheError, ShardCache
from trainer.stream.reading.ranged_read import Attempts, ShardReadError
from trainer.stream.reading.settings import Reading

ROOT = Path(__file__).parents[2]
UNIT_BYTES = 3000  # two blocks or three


@pytest.fixture
def dataset(tmp_path, make_dataset, monkeypatch):
    monkeypatch.setattr(cache_module, "UNIT_BYTES", UNIT_BYTES)
    cache_module.open_cache.cache_clear()
    return open_dataset(str(make_dataset(tmp_path / "dataset", train=((60, 45),))))


def reading(cache):
    return Reading(num_threads=2, cache_dir=cache, cache_bytes=MIN_CACHE_BYTES)


@pytest.fixture
def settings(tmp_path):
    return reading(str(tmp_path / "cache"))


def count_reads(dataset, ending=".tar"):
    """Of shards, or of files of another ending; grows as they are read."""
    reads, read_bytes = [], dataset.read_bytes

    def counted(name, start, stop):
        if name.endswith(ending):
            reads.append((name, start, stop))
        return read_bytes(name, start, stop)

    dataset.read_bytes = counted
    return reads


def read_all(dataset, settings):
    return [*chain(*Read(dataset, settings))]


def cached_files(settings):
    return sorted(Path(settings.cache_dir, "stretches").iterdir())


def read_as_bytes(cache, key, fetch):
    """Through a check that finds everything right."""
    return cache.read(
        key, bytes, lambda: (data := fetch(), data), Attempts("it", Reading(), Event())
    )


@pytest.mark.parametrize(
    "spoil", [lambda it: it[:-1], lambda _: b"", lambda it: it[:-9] + b"x" + it[-8:]]
)
def test_a_damaged_file_is_fetched_again_once(dataset, settings, spoil):
    assert read_all(dataset, settings) == EVERYTHING
    path = cached_files(settings)[2]
    path.write_bytes(spoil(path.read_bytes()))
    reads = count_reads(dataset)
    assert read_all(dataset, settings) == EVERYTHING
    assert len(reads) == 1


@pytest.mark.parametrize("damage", [None, lambda it: it[:-1], lambda it: it[:9] + b"x" + it[10:]])
def test_a_node_reads_rows_of_tables_once(dataset, settings, monkeypatch, damage):
    """A row group at a time, as those of large datasets in a store are."""
    monkeypatch.setattr("pipeline.shards.block_tables.WHOLE_BYTES", 0)
    monkeypatch.setattr(Dataset, "is_local", False)
    found = []
    for process in range(3):
        opened = open_dataset(dataset.url)
        reads = count_reads(opened, BLOCKS_TABLE)
        reader = BlockReader([(opened, shard) for shard in opened.all_shards], settings)
        assert [len(reader.table(number).result(60)) for number in range(2)] == [8, 6]
        reader.close()
        found.append(len(reads))
        for path in cached_files(settings) if damage and process == 0 else ():
            path.write_bytes(damage(path.read_bytes()))
    assert found[0] > found[2]
    assert found[1] == (found[0] if damage else found[2])


def test_what_was_used_longest_ago_makes_room(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "MIN_CACHE_BYTES", 1)
    cache, fetched = ShardCache(str(tmp_path), 1000), []

    def read(keys):
        for key in keys:
            time.sleep(0.002)  # so that no two files have one time
            fetch = lambda key=key: (fetched.append(key), key.encode() * 100)[1]  # noqa: E731
            assert read_as_bytes(cache, key, fetch) == key.encode() * 100

    read("abcdefghia")
    assert fetched == [*"abcdefghi"]
    read("jk")
    kept = sum(path.stat().st_size for path in (tmp_path / "stretches").iterdir())
    assert kept <= 1000
    read("akb")
    assert fetched == [*"abcdefghijkb"]


@pytest.mark.parametrize(("seconds", "is_wanted"), [(0.1, True), (600, False)])
def test_a_wait_for_another_process_ends(tmp_path, seconds, is_wanted):
    cache, stop = ShardCache(str(tmp_path), MIN_CACHE_BYTES), Event()
    if not is_wanted:
        stop.set()
    tried = Attempts("it", Reading(budget_seconds=seconds), stop)
    said = f"it: cache_dir {tmp_path}: waited in vain for another .* to let go of {tmp_path}/locks/"
    with (tmp_path / "locks" / cache._place("key").name).open("wb") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        with pytest.raises(ShardReadError, match=said):
            cache.read("key", bytes, lambda: (b"data", b"data"), tried)


def test_a_disk_without_locks_is_named(tmp_path, monkeypatch):
    cache = ShardCache(str(tmp_path), MIN_CACHE_BYTES)
    fail = Mock(side_effect=OSError(errno.ENOLCK, "No locks available"))
    monkeypatch.setattr(fcntl, "flock", fail)
    said = f"cache_dir {tmp_path}: No locks available; .* give another folder, on a disk of this"
    with pytest.raises(ShardReadError, match=said):
        read_as_bytes(cache, "key", lambda: b"data")


def main(folder, cache, log, pause, dies):
    """Reads everything, with a log of what it asks the store for; or dies with half written."""
    write_bytes = Path.write_bytes

    def write_half(path, data):
        write_bytes(path, data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    if dies == "writing":
        Path.write_bytes = write_half
    cache_module.UNIT_BYTES, dataset = UNIT_BYTES, open_dataset(folder)
    read_bytes = dataset.read_bytes

    def slow_read(name, start, stop):
        if name.endswith(".tar"):
            with Path(log).open("a") as file:
                file.write(f"{name} {start}\n")
            time.sleep(float(pause))
        return read_bytes(name, start, stop)

    dataset.read_bytes = slow_read
    print(read_all(dataset, reading(cache)) == EVERYTHING)


def start_reader(dataset, settings, log, pause, dies="never"):
    words = [dataset.url, settings.cache_dir, str(log), str(pause), dies]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.processes
def test_the_ranks_of_a_node_fetch_every_file_once(dataset, settings, tmp_path):
    readers = [start_reader(dataset, settings, tmp_path / "log", 0.05) for _ in range(4)]
    assert [reader.communicate(timeout=600)[0] for reader in readers] == ["True\n"] * 4
    fetched = (tmp_path / "log").read_text().splitlines()
    assert len(fetched) == len(set(fetched)) == len(cached_files(settings)) > 4


@pytest.mark.processes
def test_a_process_killed_while_it_writes_is_taken_over_from(dataset, settings, tmp_path):
    first = start_reader(dataset, settings, tmp_path / "first", 0, dies="writing")
    first.communicate(timeout=600)
    assert first.returncode == -signal.SIGKILL
    [half] = cached_files(settings)
    assert half.suffix == ".partial"
    second = start_reader(dataset, settings, tmp_path / "second", 0)
    assert second.communicate(timeout=600)[0] == "True\n"
    fetched = (tmp_path / "second").read_text().splitlines()
    assert len(fetched) == len(set(fetched)) == len(cached_files(settings))
    assert not half.exists()


def test_a_folder_that_is_a_file_is_refused_at_once(dataset, settings):
    Path(settings.cache_dir).write_text("taken")
    said = f"cache_dir {settings.cache_dir}: .*give another folder, on a disk of this"
    with pytest.raises(CacheError, match=said):
        read_all(dataset, settings)


def test_a_full_disk_is_named_with_the_blocks(dataset, settings, monkeypatch):
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(Path, "write_bytes", full)
    said = r"shard-0000\d.tar, blocks .*cache_dir .*: No space left on device; free"
    with pytest.raises(ShardReadError, match=said):
        read_all(dataset, settings)


def test_a_cache_too_small_to_hold_anything_is_refused(dataset, settings):
    with pytest.raises(ValueError, match="cache_bytes is 1000; it must be at least 67108864"):
        read_all(dataset, replace(settings, cache_bytes=1000))


if __name__ == "__main__":
    main(*sys.argv[1:])
