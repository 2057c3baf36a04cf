"""A range of a local file is what its filesystem reads; other filesystems read theirs themselves."""

import os
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from pipeline.shards.range_readers import range_reader, read_local
from pipeline.shards.storage import read_range


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "some bytes"
    file.write_bytes(bytes(range(256)) * 40)
    return str(file)


@pytest.mark.parametrize(("start", "stop"), [(0, 10_240), (0, 0), (1, 2), (5000, 10_240), (300, 7001)])
def test_local_ranges_are_those_of_the_filesystem(path, start, stop):
    files = fsspec.filesystem("file")
    assert range_reader(files) is read_local
    assert read_range(files, path, start, stop, 1, read_local) == files.cat_file(path, start=start, end=stop)


def test_a_system_that_reads_less_at_a_time_is_asked_again(path, monkeypatch):
    pread, asked = os.pread, []

    def slow(file: int, size: int, start: int) -> bytes:
        asked.append(size)
        return pread(file, min(size, 4000), start)

    monkeypatch.setattr(os, "pread", slow)
    assert read_local(path, 100, 9100) == (bytes(range(256)) * 40)[100:9100]
    assert asked == [9000, 5000, 1000]


def test_ranges_past_the_end_and_missing_files_are_errors_and_leave_no_file_open(path):
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir())) if descriptors.exists() else 0
    with pytest.raises(OSError, match=r"asked for bytes 10000-20000, got 240 of 10000"):
        read_range(fsspec.filesystem("file"), path, 10_000, 20_000, 1, read_local)
    with pytest.raises(FileNotFoundError, match="missing"):
        read_local(f"{path}.missing", 0, 1)
    with pytest.raises(IsADirectoryError):
        read_local(str(Path(path).parent), 0, 1)
    assert (len(list(descriptors.iterdir())) if descriptors.exists() else 0) == before


def test_what_is_built_on_local_files_reads_them_itself():
    class Own(LocalFileSystem):
        cachable = False

    assert range_reader(Own()) is None
    assert range_reader(fsspec.filesystem("memory")) is None
