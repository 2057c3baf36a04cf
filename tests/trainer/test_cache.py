"""The cache of stretches: one fetches, all read; killed, damaged, full or forbidden, it never costs an instance."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from pipeline.shards.dataset import Dataset, open_dataset
from trainer.stream import cache as cache_module
from trainer.stream import cached_read
from trainer.stream.attempts import ShardReadError
from trainer.stream.cache import MIN_CACHE_BYTES, CacheError, ShardCache
from trainer.stream.fetch import BlockWindow
from trainer.stream.planned import Steps
from trainer.stream.read_settings import ReadSettings

ROOT = Path(__file__).parents[2]
SIZES = (60, 45)


@pytest.fixture
def dataset(tmp_path: Path, make_dataset, monkeypatch) -> Dataset:
    monkeypatch.setattr(cached_read, "STRETCH_BYTES", 3000)  # two blocks or three
    cached_read.open_cache.cache_clear()
    return open_dataset(str(make_dataset(tmp_path / "dataset", train=(SIZES,))))


@pytest.fixture
def settings(tmp_path: Path) -> ReadSettings:
    return ReadSettings(num_threads=2, cache_dir=str(tmp_path / "cache"), cache_bytes=MIN_CACHE_BYTES)


def count_reads(dataset: Dataset) -> list[tuple[str, int, int]]:
    reads, read_bytes = [], dataset.read_bytes
    dataset.read_bytes = lambda *span: (reads.append(span), read_bytes(*span))[1]
    return reads


def read_all(dataset: Dataset, settings: ReadSettings) -> list[int]:
    rows = [[s, b, 0, min(8, size - 8 * b)] for s, size in enumerate(SIZES) for b in range(-(-size // 8))]
    plan = iter([Steps(*np.array(rows).T, np.arange(len(rows) + 1))])
    window = BlockWindow(dataset, dataset.shards("train", 8192, 0), plan, settings)
    found = [n for step in window for n in step.document_a.tolist()]
    window.close()
    return found


EVERYTHING = [*range(60), *range(100_000, 100_045)]


def stretches(settings: ReadSettings) -> list[Path]:
    return sorted(Path(settings.cache_dir, "stretches").iterdir())


def test_a_second_reader_asks_the_store_for_nothing(dataset, settings):
    reads = count_reads(dataset)
    assert read_all(dataset, settings) == EVERYTHING
    assert len(reads) == len(set(reads)) == len(stretches(settings)) > 4
    assert read_all(dataset, settings) == EVERYTHING
    assert len(reads) == len(stretches(settings))


def test_other_ranges_find_the_same_stretches(dataset, settings):
    assert read_all(dataset, settings) == EVERYTHING
    reads = count_reads(dataset)
    assert read_all(dataset, replace(settings, max_read_bytes=1)) == EVERYTHING
    assert not reads


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda _: b"", lambda data: data[:-9] + b"x" + data[-8:]])
def test_a_damaged_stretch_is_fetched_again_once(dataset, settings, damage):
    assert read_all(dataset, settings) == EVERYTHING
    path = stretches(settings)[2]
    path.write_bytes(damage(path.read_bytes()))
    reads = count_reads(dataset)
    assert read_all(dataset, settings) == EVERYTHING
    assert len(reads) == 1


def test_what_was_used_longest_ago_makes_room(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "MIN_CACHE_BYTES", 1)
    cache, fetched = ShardCache(str(tmp_path), 1000), []

    def read(key: str) -> bytes:
        time.sleep(0.002)  # so that no two files have one time
        return cache.read(key, bytes, lambda: (fetched.append(key), key.encode() * 100)[1], Event(), 5)

    for key in "abcdefghi":
        assert read(key) == key.encode() * 100
    read("a")
    assert fetched == [*"abcdefghi"]
    read("j")
    read("k")
    kept = sum(path.stat().st_size for path in (tmp_path / "stretches").iterdir())
    assert kept <= 1000
    read("a")
    read("k")
    assert fetched == [*"abcdefghijk"]
    read("b")
    assert fetched[-1] == "b"


def test_a_wrong_count_is_put_right_by_clearing(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "MIN_CACHE_BYTES", 1)
    cache = ShardCache(str(tmp_path), 1000)
    for text in ("", "not a number", "999"):
        (tmp_path / "usage").write_text(text)
        cache.read(f"key {text}", bytes, lambda: b"x" * 100, Event(), 5)
    assert (tmp_path / "usage").read_text() == "300"


def test_threads_fetch_a_stretch_once(tmp_path):
    cache, fetched, found = ShardCache(str(tmp_path), MIN_CACHE_BYTES), [], []

    def fetch() -> bytes:
        fetched.append(1)
        time.sleep(0.1)
        return b"data"

    readers = [
        threading.Thread(target=lambda: found.append(cache.read("key", bytes, fetch, Event(), 5))) for _ in range(6)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert found == [b"data"] * 6
    assert len(fetched) == 1


def test_a_fetch_that_fails_leaves_nothing_and_the_next_one_succeeds(tmp_path):
    cache = ShardCache(str(tmp_path), MIN_CACHE_BYTES)

    def fail() -> bytes:
        raise ShardReadError("gone")

    with pytest.raises(ShardReadError, match="gone"):
        cache.read("key", bytes, fail, Event(), 5)
    assert not list((tmp_path / "stretches").iterdir())
    assert cache.read("key", bytes, lambda: b"data", Event(), 5) == b"data"


def test_a_wait_for_another_process_ends(tmp_path):
    cache, entered, leave = ShardCache(str(tmp_path), MIN_CACHE_BYTES), Event(), Event()

    def hold() -> bytes:
        entered.set()
        leave.wait(10)
        return b"data"

    holder = threading.Thread(target=lambda: cache.read("key", bytes, hold, Event(), 5))
    holder.start()
    entered.wait(10)
    with pytest.raises(CacheError, match=f"cache_dir {tmp_path}: waited in vain"):
        cache.read("key", bytes, lambda: b"data", Event(), 0.1)
    leave.set()
    holder.join()


READER = """
import sys, time
from pathlib import Path
import numpy as np
from pipeline.shards.dataset import open_dataset
from trainer.stream import cached_read
from trainer.stream.fetch import BlockWindow
from trainer.stream.planned import Steps
from trainer.stream.read_settings import ReadSettings

folder, cache, log, pause = sys.argv[1:]
cached_read.STRETCH_BYTES = 3000
dataset = open_dataset(folder)
read_bytes = dataset.read_bytes

def slow_read(name, start, stop):
    with open(log, "a") as file:
        file.write(f"{name} {start}\\n")
    time.sleep(float(pause))
    return read_bytes(name, start, stop)

dataset.read_bytes = slow_read
rows = [[s, b, 0, min(8, size - 8 * b)] for s, size in enumerate((60, 45)) for b in range(-(-size // 8))]
settings = ReadSettings(num_threads=3, cache_dir=cache, cache_bytes=2**26)
plan = iter([Steps(*np.array(rows).T, np.arange(len(rows) + 1))])
window = BlockWindow(dataset, dataset.shards("train", 8192, 0), plan, settings)
print([n for step in window for n in step.document_a.tolist()] == [*range(60), *range(100_000, 100_045)])
"""


def start_reader(dataset: Dataset, settings: ReadSettings, log: Path, pause: float) -> subprocess.Popen:
    arguments = [dataset.url, settings.cache_dir, str(log), str(pause)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", READER, *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )


def test_four_cold_processes_fetch_every_stretch_once(dataset, settings, tmp_path):
    readers = [start_reader(dataset, settings, tmp_path / "log", 0.05) for _ in range(4)]
    assert [reader.communicate(timeout=120)[0] for reader in readers] == ["True\n"] * 4
    fetched = (tmp_path / "log").read_text().splitlines()
    assert len(fetched) == len(set(fetched)) == len(stretches(settings)) > 4


def test_a_process_killed_in_mid_fetch_is_taken_over_from(dataset, settings, tmp_path):
    first = start_reader(dataset, settings, tmp_path / "first", 60)
    began = time.monotonic()
    while not (tmp_path / "first").exists():
        assert time.monotonic() - began < 60
        time.sleep(0.02)
    second = start_reader(dataset, settings, tmp_path / "second", 0)
    time.sleep(0.5)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=30)
    assert second.communicate(timeout=60)[0] == "True\n"
    left = stretches(settings)[0].with_suffix(".partial")
    left.write_bytes(b"half of what a killed process wrote")
    assert read_all(dataset, settings) == EVERYTHING


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_refused_at_once(dataset, settings):
    folder = Path(settings.cache_dir)
    folder.mkdir(mode=0o500)
    with pytest.raises(CacheError, match=f"cache_dir {folder}: Permission denied; free some room there, lower"):
        read_all(dataset, settings)


def test_a_folder_that_is_a_file_is_refused_at_once(dataset, settings):
    Path(settings.cache_dir).write_text("taken")
    with pytest.raises(
        CacheError, match=f"cache_dir {settings.cache_dir}: .*give another folder or leave cache_dir out"
    ):
        read_all(dataset, settings)


def test_a_full_disk_is_named_with_the_stretch(dataset, settings, monkeypatch):
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ShardReadError, match=r"shard-0000\d.tar, blocks .*cache_dir .*: No space left on device; free"):
        read_all(dataset, settings)


def test_a_cache_too_small_to_hold_anything_is_refused(dataset, settings):
    with pytest.raises(ValueError, match="cache_bytes is 1000; it must be at least 67108864"):
        read_all(dataset, replace(settings, cache_bytes=1000))
