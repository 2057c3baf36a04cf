"""Every request that a build makes is tried again."""

import errno
import threading

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipeline.storage import faults as storage
from pipeline.storage.folder import Folder
from tests.stores.conftest import root_hash

pytestmark = pytest.mark.engines

REQUESTS = "exists isfile isdir find glob info size ls cat_file cat pipe_file rm_file"
DEPTH = threading.local()


class FlakyMemory(MemoryFileSystem):
    """A store that refuses every request, of whichever kind."""

    protocol = ("flaky",)
    store = {}  # noqa: RUF012 - fsspec keeps a class's files here
    pseudo_dirs = [""]  # noqa: RUF012
    refused = set()  # noqa: RUF012 - kinds and paths of the requests refused

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).removeprefix("flaky://"))


def refuse_once(name):
    answer = getattr(MemoryFileSystem, name)

    def request(self, *args, **kwargs):
        depth = getattr(DEPTH, "depth", 0)
        if depth == 0 and (key := (name, str(args[0]))) not in FlakyMemory.refused:
            FlakyMemory.refused.add(key)
            raise OSError(errno.EBUSY, f"SlowDown: {name}")
        DEPTH.depth = depth + 1  # what the filesystem asks of itself is part of one request
        try:
            return answer(self, *args, **kwargs)
        finally:
            DEPTH.depth = depth

    return request


for each in REQUESTS.split():
    setattr(FlakyMemory, each, refuse_once(each))


@pytest.fixture
def flaky(monkeypatch):
    monkeypatch.setattr(storage, "FIRST_DELAY_SECONDS", 0.001)
    monkeypatch.setattr(storage, "MAX_DELAY_SECONDS", 0.002)
    fsspec.register_implementation("flaky", FlakyMemory, clobber=True)
    FlakyMemory.store.clear()
    FlakyMemory.refused.clear()
    yield fsspec.filesystem("flaky")
    FlakyMemory.store.clear()


def test_a_build_on_a_flaky_store_ends_with_the_same_root_hash(flaky, corpus, local, pipeline):
    for path in sorted(corpus.iterdir()):
        Folder.on(flaky, "/text").write(f"{path.name}", path.read_bytes())
    folders = ("--input", "flaky:///text/*", "--output", "flaky:///data")
    assert pipeline("build", *folders) == 0
    kinds = {kind for kind, _ in FlakyMemory.refused}
    assert {"exists", "isfile", "glob", "find", "size", "cat_file", "pipe_file", "rm_file"} <= kinds
    FlakyMemory.refused.clear()
    assert pipeline("build", *folders) == 0  # one that is finished asks too
    for command in ("verify", "inspect", "report"):
        FlakyMemory.refused.clear()
        assert pipeline(command, "flaky:///data") == 0
    assert root_hash("flaky:///data") == root_hash(local)


def test_a_file_is_read_piece_by_piece_through_a_flaky_store(flaky):
    content = bytes(range(256)) * 20_000
    Folder.on(flaky, "/a").write("large", content)
    with Folder.on(flaky, "/a").open("large") as file:
        file.seek(-1000, 2)
        assert file.read() == content[-1000:]
        file.seek(3)
        assert file.read(5) == content[3:8]
        assert file.read(0) == b""
        assert file.tell() == 8
        assert file.read() == content[8:]
        assert file.read() == b""
        with pytest.raises(OSError, match="cannot seek to -1"):
            file.raw.seek(-1)


def test_small_files_are_read_together_or_the_missing_one_is_named(flaky):
    for number in range(40):
        Folder.on(flaky, "/a").write(f"{number}", b"x" * number)
    names = [str(number) for number in reversed(range(40))]
    assert Folder.on(flaky, "/a").read_many(names) == {name: b"x" * int(name) for name in names}
    assert Folder.on(flaky, "/a").read_many([]) == {}
    with pytest.raises(FileNotFoundError, match="flaky:///a: b and 0 more are missing"):
        Folder.on(flaky, "/a").read_many(["1", "b"])
