"""Stores and disks that fail: nothing partial is published, what passes is tried again."""

import errno
import json
import os
import re
import resource
import socket
import subprocess
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest
from botocore.exceptions import (
    ChecksumError,
    ClientError,
    EndpointConnectionError,
    FlexibleChecksumError,
    IncompleteReadError,
    NoCredentialsError,
    ParamValidationError,
    ProfileNotFound,
)
from fsspec.implementations.memory import MemoryFileSystem
from google.auth.exceptions import RefreshError

from pipeline.shards.dataset import open_dataset
from pipeline.storage import faults
from pipeline.storage.faults import StorageError, call_patiently
from pipeline.storage.folder import Folder
from pipeline.storage.local import find_temporaries
from tests.stores.conftest import SECRET, root_hash, s3_options
from tests.stores.faulty_proxy import unavailable

pytestmark = pytest.mark.engines


class FaultyMemory(MemoryFileSystem):
    """A store that fails as told: each of `faults` is an error, a number of bytes, or None."""

    cachable = False
    store = {}  # noqa: RUF012 - fsspec keeps a class's files here
    pseudo_dirs = [""]  # noqa: RUF012

    def __init__(self, faults):
        super().__init__()
        self.store.clear()
        self.faults, self.calls = list(faults), 0

    def next_fault(self):
        self.calls += 1
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, Exception):
            raise fault
        return fault

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        super().pipe_file(path, value[: self.next_fault()], mode=mode, **kwargs)

    def cat_file(self, path, start=None, end=None, **kwargs):
        return super().cat_file(path, start, end, **kwargs)[: self.next_fault()]


class HttpError(Exception):
    """As gcsfs raises it."""

    def __init__(self, code):
        super().__init__(f"answered {code}")
        self.code = code


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch):
    monkeypatch.setattr(faults, "FIRST_DELAY_SECONDS", 0.001)
    monkeypatch.setattr(faults, "MAX_DELAY_SECONDS", 0.002)


BUSY = OSError(errno.EBUSY, "SlowDown")


@pytest.mark.parametrize(
    "faults",
    [
        [TimeoutError(), HttpError(500), OSError(errno.EIO, "")],
        [HttpError(503), ConnectionResetError()],
        [BUSY, 0, 5, HttpError("429")],
    ],
)
def test_an_upload_that_fails_for_a_while_ends_whole(faults):
    store = FaultyMemory(faults)
    Folder.on(store, "/bucket").write("a.tar", b"0123456789")
    assert store.calls == len(faults) + 1
    assert store.store["/bucket/a.tar"].getvalue() == b"0123456789"


@pytest.mark.parametrize(
    ("fault", "cause"),
    [(HttpError(503), "answered 503"), (4, "10 bytes were uploaded, the store held 4")],
)
def test_an_upload_that_fails_for_good_publishes_nothing(fault, cause):
    store = FaultyMemory([fault] * 100)
    said = rf"memory:///bucket/a.tar: gave up after 6 attempt\(s\) in .* s: .*{cause}"
    with pytest.raises(StorageError, match=said):
        Folder.on(store, "/bucket").write("a.tar", b"0123456789")
    assert store.calls == faults.ATTEMPTS == 6
    assert store.find("/") == []


def answered(status, code, kind=OSError, number=errno.EINVAL):
    """As s3fs raises it: an error of Python with botocore's as its cause."""
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error = kind(number, f"told {code}")
    error.__cause__ = ClientError(answer, "PutObject")
    return error


FINAL = [
    HttpError(400), HttpError(404), HttpError(405), HttpError("501"), OSError(22, "invalid"),
    OSError(errno.EROFS, "read-only"), OSError(errno.ENAMETOOLONG, "long"), TypeError("a"),
    ParamValidationError(report="Invalid bucket name"), ProfileNotFound(profile="no"),
    answered(400, "InvalidBucketName"), answered(400, "EntityTooLarge"),
    answered(301, "PermanentRedirect"), answered(400, "AuthorizationHeaderMalformed"),
    answered(400, "IllegalLocationConstraintException", PermissionError),
]  # fmt: skip
PASSING = [
    HttpError(409), HttpError(429), HttpError(500), HttpError(418), KeyError("Contents"),
    OSError("odd"), OSError(errno.EIO, ""), OSError(errno.ENOTCONN, ""), RuntimeError("odd"),
    json.JSONDecodeError("Expecting value", "<html>", 0), ConnectionResetError(), TimeoutError(),
    FlexibleChecksumError(error_msg="Expected checksum x did not match calculated checksum: y"),
    ChecksumError(checksum_type="crc32", expected_checksum="x", actual_checksum="y"),
    IncompleteReadError(actual_bytes=1, expected_bytes=2), EndpointConnectionError(endpoint_url=""),
    answered(400, "BadDigest"), answered(400, "XAmzContentChecksumMismatch"),
    answered(400, "IncompleteBody"), answered(503, "SlowDown", number=errno.EBUSY),
    answered(400, "RequestTimeout"), answered(499, "SomethingNew", number=errno.EIO),
]  # fmt: skip


@pytest.mark.parametrize("fault", PASSING, ids=repr)
def test_an_error_that_is_not_known_to_be_final_is_asked_again(fault):
    store = FaultyMemory([fault, fault])
    Folder.on(store, "/bucket").write("a.tar", b"0123456789")
    assert store.calls == 3
    store.faults = [fault, fault]
    assert Folder.on(store, "/bucket").read_range("a.tar", 2, 5) == b"234"


@pytest.mark.parametrize("fault", FINAL, ids=repr)
def test_what_time_does_not_mend_is_tried_once(fault):
    store = FaultyMemory([fault] * 100)
    said = rf"/bucket/a.tar: gave up after 1 attempt.*{re.escape(str(fault).split()[-1])}"
    with pytest.raises(StorageError, match=said):
        Folder.on(store, "/bucket").write("a.tar", b"0123456789")
    assert store.calls == 1


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only while somebody sleeps."""
    passed = []
    monkeypatch.undo()
    time = SimpleNamespace(monotonic=lambda: sum(passed), sleep=passed.append)
    monkeypatch.setattr(faults, "time", time)
    return time.monotonic


@pytest.mark.parametrize(
    "refusal",
    [PermissionError("Access Denied"), HttpError(403), HttpError(401), OSError("Forbidden: b/a")],
    ids=repr,
)
def test_a_store_that_answered_and_now_refuses_is_asked_again_for_half_a_minute(clock, refusal):
    store = FaultyMemory([])
    Folder.on(store, "/b").write("a", b"0123456789")
    store.faults = [refusal] * 5
    assert Folder.on(store, "/b").read_range("a", 0, 10) == b"0123456789"
    assert 5 < clock() < 16
    began = clock()
    store.faults = [refusal] * 100
    with pytest.raises(PermissionError, match=rf"b/a, bytes 0-10: {refusal}; check the cred"):
        Folder.on(store, "/b").read_range("a", 0, 10)
    assert clock() - began == pytest.approx(30.0)


def test_refusals_do_not_use_up_the_attempts(clock):
    store = FaultyMemory([])
    Folder.on(store, "/b").write("a", b"0")
    store.faults = [PermissionError()] * 3 + [BUSY] * (faults.ATTEMPTS - 1)
    Folder.on(store, "/b").write("a", b"1")
    assert store.store["/b/a"].getvalue() == b"1"


class Foreign(FaultyMemory):
    """Of which no request was answered."""


@pytest.mark.parametrize(
    "error", [PermissionError("Access Denied"), NoCredentialsError(), RefreshError("expired")]
)
def test_a_store_that_refuses_the_first_question_is_believed(clock, error):
    store = Foreign([error])
    with pytest.raises(PermissionError, match=rf"memory:///b/a: {error}; check the credentials"):
        Folder.on(store, "/b").write("a", b"0")
    assert (store.calls, clock()) == (1, 0.0)


def unresolved():
    error = ConnectionError("Cannot connect to host nowhere.invalid:443")
    error.__cause__ = socket.gaierror(-2, "Name or service not known")
    return error


def test_a_name_that_does_not_resolve_is_asked_once_until_it_has_answered(clock, capsys):
    class Other(FaultyMemory):
        protocol = "foreign"

    store = Other([unresolved()] * 9)
    with pytest.raises(StorageError, match=r"1 attempt\(s\) in 0.0 s: .*this machine has a net"):
        Folder.on(store, "/b").write("a", b"0")
    store.faults = [BUSY]
    Folder.on(store, "/b").write("a", b"0")
    assert "/b/a: [Errno 16] SlowDown; trying again, for some 120 s\n" in capsys.readouterr().err
    store.faults = [unresolved()]
    Folder.on(store, "/b").write("a", b"0")
    assert capsys.readouterr().err == ""


def test_a_gs_url_is_refused_at_once_where_the_name_of_google_does_not_resolve(monkeypatch):
    def resolve(*_):
        raise unresolved().__cause__

    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setattr(faults, "getproxies", dict)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr("pipeline.storage.folder.fsspec.core.url_to_fs", None)
    with pytest.raises(StorageError, match=r"^gs://b/a: gave up after 1 attempt.*network$"):
        Folder("gs://b/a").read("manifest.json")


def test_no_attempt_begins_after_two_minutes_of_drivers_own_tries(clock, monkeypatch):
    class Slow(FaultyMemory):
        def pipe_file(self, *arguments, **options):
            faults.time.sleep(102)  # as gcsfs does without a network
            super().pipe_file(*arguments, **options)

    store = Slow([BUSY] * 9)
    with pytest.raises(StorageError, match=r"gave up after 2 attempt\(s\) in 20\d"):
        Folder.on(store, "/b").write("a", b"0")


def test_a_driver_that_does_not_answer_is_spoken_of(monkeypatch, capsys):
    monkeypatch.setattr(faults, "SLOW_SECONDS", 0.0)
    said = threading.Event()
    monkeypatch.setattr(faults, "say", lambda line: (print(line), said.set()))
    assert call_patiently("s3://b/a", lambda: said.wait(60))
    assert capsys.readouterr().out == "s3://b/a: no answer for 0 s, still waiting\n"


@pytest.mark.parametrize("name", ["manifest.json", "shards.parquet"])
@pytest.mark.parametrize("fault", ["damage", "cut", "foreign"])
def test_a_dataset_whose_tables_come_damaged_is_opened_all_the_same(
    make_dataset, tmp_path, monkeypatch, name, fault
):
    """As with blocks: what the wire damaged is asked for again, three times in all."""
    folder = make_dataset(tmp_path / "data", ((20, 9), (13, 17)))
    whole = open_dataset(str(folder))

    class Store(MemoryFileSystem):
        cachable, store, pseudo_dirs, left, asked = False, {}, [""], 0, 0

        def cat_file(self, path, start=None, end=None, **kwargs):
            data = super().cat_file(path, start, end, **kwargs)
            if not path.endswith(name):
                return data
            Store.asked += 1
            Store.left -= 1
            damaged = bytearray(data)
            damaged[5] ^= 1
            damaged[-5] ^= 4
            html = b"<html>".ljust(len(data))
            spoil = {"damage": bytes(damaged), "cut": data[:-1], "foreign": html}
            return spoil[fault] if Store.left >= 0 else data

    Store().put(f"{folder}/", "/data/", recursive=True)
    monkeypatch.setattr("pipeline.shards.dataset.Folder", lambda *_: Folder.on(Store(), "/data"))
    Store.left = 2
    assert open_dataset("memory://data").manifest == whole.manifest
    Store.left, Store.asked = 100, 0
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        open_dataset("memory://data")
    assert Store.asked == (faults.ATTEMPTS if fault == "cut" else faults.DAMAGE_ATTEMPTS)


def test_a_short_body_is_read_again_unless_the_caller_does_so_itself():
    store = FaultyMemory([])
    Folder.on(store, "/bucket").write("a", b"0123456789")
    store.faults = [3, 0]
    assert Folder.on(store, "/bucket").read_range("a", 2, 8) == b"234567"
    store.faults = [3]
    with pytest.raises(OSError, match="asked for bytes 2-8, got 3 of 6") as caught:
        Folder.on(store, "/bucket").read_once("a", 2, 8)
    assert not isinstance(caught.value, ValueError)  # on which the trainer does not try again


@pytest.mark.parametrize(
    ("ask", "ask_once"),
    [
        (partial(Folder.read_range, start=2, stop=8), partial(Folder.read_once, start=2, stop=8)),
        (Folder.size, partial(Folder.size, attempts=1)),
    ],
    ids=["read_range", "size"],
)
def test_an_answer_that_a_driver_cannot_parse_is_asked_for_again(ask, ask_once):
    """And in the trainer's hands it is an OSError, as a ValueError says that data are damaged."""

    class Store(FaultyMemory):
        def size(self, path):
            self.next_fault()
            return super().size(path)

    unreadable = json.JSONDecodeError("Expecting value", "<html>", 0)
    store = Store([])
    Folder.on(store, "/bucket").write("a", b"0123456789")
    store.faults = [unreadable, unreadable]
    assert ask(Folder.on(store, "/bucket"), "a") in (b"234567", 10)
    store.faults = [unreadable]
    with pytest.raises(OSError, match=r"bucket/a: JSONDecodeError.'Expecting value") as caught:
        ask_once(Folder.on(store, "/bucket"), "a")
    assert not isinstance(caught.value, ValueError)


def test_pauses_grow_and_stay_within_their_bounds(monkeypatch):
    pauses = []
    monkeypatch.undo()
    monkeypatch.setattr(faults.time, "sleep", pauses.append)

    def fail():
        raise TimeoutError

    with pytest.raises(StorageError, match="URL: gave up"):
        call_patiently("URL", fail)
    assert len(pauses) == 5
    for pause, longest in zip(pauses, (0.5, 1, 2, 4, 8), strict=True):
        assert longest / 2 <= pause <= longest


def test_removing_what_is_already_gone_is_no_error():
    store = FaultyMemory([])
    Folder.on(store, "/bucket").write("a", b"0")
    Folder.on(store, "/bucket").remove(["a", "b"])
    assert Folder.on(store, "/bucket").list() == {}


def test_only_the_names_of_killed_writers_are_temporary():
    left = "train/L64/.shard-00000.tar.partial-123-0a1b2c3d"
    others = ["a.partial-1-00000000", ".notes.partial-draft", ".hidden", "x/.partial-1-00000000"]
    assert find_temporaries([left, *others]) == [left]


def test_a_large_object_goes_up_in_parts_and_comes_back_whole(s3):
    store = fsspec.filesystem("s3", **s3)
    data = os.urandom(2**20) * 104  # the driver begins with parts at 100 MiB
    Folder.on(store, "corpus").write("large.bin", data)
    assert store.info("corpus/large.bin")["ETag"].strip('"').endswith("-3")
    assert Folder.on(store, "corpus").read_range("large.bin", 0, len(data)) == data
    Folder.on(store, "corpus").remove(["large.bin"])


@pytest.fixture
def faulty_s3(start_proxy, swift_port):
    """faulty_s3(fails): the proxy that says "unavailable" to some requests, and its options."""

    def start(fails):
        proxy = start_proxy(swift_port, unavailable, 10**9, chooses=fails)
        return proxy, s3_options(proxy.server_address[1])

    return start


def test_a_passing_storm_of_errors_changes_nothing(faulty_s3, corpus, local, pipeline, s3):
    seen = {}

    def fails(method, path):
        """Every object is refused twice and then taken."""
        seen[method, path] = seen.get((method, path), 0) + 1
        return method == "PUT" and seen[method, path] <= 2

    proxy, options = faulty_s3(fails)
    folders = ("--input", corpus, "--output", "s3://corpus/storm")
    assert pipeline("build", *folders, "--storage_options", json.dumps(options)) == 0
    assert proxy.spoiled > 20
    assert root_hash("s3://corpus/storm", s3) == root_hash(local)


def test_a_lasting_storm_publishes_nothing_and_a_rerun_completes(
    faulty_s3, corpus, local, pipeline, s3, capfd
):
    proxy, options = faulty_s3(lambda method, path: method == "PUT" and path.endswith(".tar"))
    folders = ("--input", corpus, "--output", "s3://corpus/broken")
    assert pipeline("build", *folders, "--storage_options", json.dumps(options)) == 2
    said = capfd.readouterr().err
    assert "s3://corpus/broken/" in said
    assert ".tar: gave up after 6 attempt(s)" in said
    assert proxy.spoiled >= faults.ATTEMPTS
    assert options["secret"] not in said
    store = fsspec.filesystem("s3", **s3)
    names = [Path(name).name for name in store.find("corpus/broken")]
    assert "tokens.json" in names
    assert not [name for name in names if name.endswith(".tar") or name == "manifest.json"]
    assert pipeline("build", *folders, "--storage_options", json.dumps(s3)) == 0
    assert root_hash("s3://corpus/broken", s3) == root_hash(local)


def test_a_store_that_is_not_there_is_one_message(pipeline, tmp_path, capsys):
    options = json.dumps(s3_options(9))
    flags = ("--input", "s3://corpus/*.jsonl", "--output", tmp_path / "data")
    assert pipeline("build", *flags, "--storage_options", options) == 2
    said = capsys.readouterr().err
    assert "s3://corpus/*.jsonl: gave up after 6 attempt(s)" in said
    assert "Could not connect to the endpoint URL" in said
    assert SECRET not in said


@pytest.fixture(params=["by a limit", 16, 160])
def full_disk(request, tmp_path, local):
    """A folder where files have room, until the function is called, by a limit or in kilobytes."""
    if request.param == "by a limit":  # which fails a write as a full disk does, in its middle
        most = min(path.stat().st_size for path in local.rglob("train/**/*.tar")) // 2
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
        enlarge = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (soft, hard))
        yield tmp_path, enlarge
        enlarge()
    elif mount(tmp_path, f"size={request.param}k").returncode:
        pytest.skip("file systems cannot be mounted here")
    else:
        yield tmp_path, lambda: mount(tmp_path, "remount,size=20000k")
        subprocess.run(["umount", tmp_path], check=False)


def mount(folder, options):
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
    return subprocess.run(command, capture_output=True, check=False)


def test_a_full_disk_is_one_message_and_a_rerun_completes(
    full_disk, corpus, local, pipeline, capfd
):
    folder, enlarge = full_disk
    assert pipeline("build", "--input", corpus, "--output", folder / "data") == 2
    said = capfd.readouterr().err
    assert "no room for its" in said
    assert "free some space and run the same command again" in said
    assert "Traceback" not in said
    names = [path.name for path in folder.rglob("*")]
    assert not [name for name in names if name == "manifest.json" or ".partial-" in name]
    enlarge()
    assert pipeline("build", "--input", corpus, "--output", folder / "data") == 0
    assert root_hash(folder / "data") == root_hash(local)
