"""A folder is cheap to make, opens its filesystem once, travels to workers."""

import os
import pickle
import zipfile
from pathlib import Path

import fsspec
import pytest

from pipeline.storage.faults import CutFileError, SizeError
from pipeline.storage.folder import Folder
from pipeline.storage.local import refuse_other_than_file
from pipeline.storage.option_variables import fill_in_variables
from pipeline.storage.secret_values import hide


@pytest.fixture
def memory():
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()


def test_a_folder_opens_nothing_until_it_is_asked():
    folder = Folder("nothing://host/a")  # nobody knows the protocol
    assert str(folder / "b") == "nothing://host/a/b"
    with pytest.raises(ValueError, match="nothing://host/a: cannot be opened: Protocol not known"):
        folder.exists("c")


@pytest.mark.parametrize("is_open", [False, True])
def test_a_folder_travels_without_its_filesystem(memory, is_open):
    folder = Folder("memory://data", {"skip_instance_cache": True})
    if is_open:
        folder.write("name", b"1")
    stored = pickle.dumps(folder)
    assert len(stored) < 200
    again = pickle.loads(stored)
    assert again == folder
    assert again.options == {"skip_instance_cache": True}
    assert again.exists("name") == is_open


def test_the_name_of_a_variable_travels_and_its_value_does_not(memory, monkeypatch):
    given = {"secret": "${STORE_SECRET}", "client_kwargs": {"token": "${STORE_SECRET}"}, "id": "$X"}
    folder = Folder("memory://data", given | {"skip_instance_cache": True})
    message = "secret is the value of the environment variable STORE_SECRET, which is not set in"
    with pytest.raises(ValueError, match=message):
        folder.exists()
    monkeypatch.setenv("STORE_SECRET", "s3cret-0816")
    used = folder.filesystem.storage_options
    assert used["secret"] == used["client_kwargs"]["token"] == "s3cret-0816"
    assert used["id"] == "$X"
    assert hide("with s3cret-0816") == "with (hidden)"
    assert b"s3cret-0816" not in pickle.dumps(folder)
    assert pickle.loads(pickle.dumps(folder)).options["secret"] == "${STORE_SECRET}"


def test_the_folder_of_a_file_travels_without_the_value_of_a_variable(memory, monkeypatch):
    monkeypatch.setenv("STORE_SECRET", "s3cret-0816")
    given = {"secret": "${STORE_SECRET}", "skip_instance_cache": True}
    folder, name = Folder.of_file("memory://data/file", given)
    assert (folder.filesystem.storage_options["secret"], name) == ("s3cret-0816", "file")
    assert b"s3cret-0816" not in pickle.dumps(folder)
    assert pickle.loads(pickle.dumps(folder)).filesystem.storage_options["secret"] == "s3cret-0816"


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (["${STORE_SECRET}", {"keys": ["${STORE_SECRET}"]}], ["${Y}", {"keys": ["${Y}"]}]),
        (("${STORE_SECRET}",), ("${Y}",)),
        ("Bearer ${STORE_SECRET}", "Bearer ${STORE_SECRET}"),
        ("${STORE-SECRET}", "${STORE-SECRET}"),
    ],
)
def test_a_text_that_is_the_name_of_a_variable_is_replaced_once_in_lists_too(
    monkeypatch, given, value
):
    """So a value that reads ${Y} is given by a variable that holds this text."""
    monkeypatch.setenv("STORE_SECRET", "${Y}")
    assert fill_in_variables({"option": given}) == {"option": value}


def test_a_folder_opens_its_filesystem_once_and_hands_it_to_those_below(tmp_path):
    folder = Folder(str(tmp_path), {"skip_instance_cache": True})
    assert folder.filesystem is folder.filesystem
    assert (folder / "a" / "b").filesystem is folder.filesystem
    assert Folder(folder.url, folder.options).filesystem is not folder.filesystem


def test_options_are_not_shown():
    assert "hidden-0815" not in repr(Folder("memory://a", {"secret": "hidden-0815"}))
    assert len({Folder("memory://a", {"secret": "b"}), Folder("memory://a", {"secret": "b"})}) == 1


def test_files_are_named_relative_to_their_folder(memory):
    folder = Folder("memory://data/")
    (folder / "train/L64").write("a", b"123")
    folder.write("b", b"4567")
    assert folder.list() == {"b": 4, "train/L64/a": 3}
    assert (folder / "train").list() == {"L64/a": 3}
    assert folder.read("train/L64/a") == (folder / "train" / "L64").read("a") == b"123"
    assert (folder.locate(), folder.locate("b")) == ("memory:///data", "memory:///data/b")
    assert [folder.exists(name) for name in ("", "b", "train", "c")] == [True, True, True, False]
    assert [folder.is_file(name) for name in ("", "b", "train", "c")] == [False, True, False, False]
    folder.remove(["b", "gone"])
    assert list(memory.store) == ["/data/train/L64/a"]


@pytest.mark.parametrize(
    "url", ["memory://top", "memory://a/b/file.txt", "memory:///a/file", "file.txt", "a/file"]
)
def test_a_file_is_found_by_the_folder_and_the_name_of_its_url(memory, tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    folder, name = Folder.of_file(url)
    folder.write(name, b"data")
    assert "/" not in name
    assert Folder(url).is_file()
    assert pickle.loads(pickle.dumps(folder)).read(name) == b"data"
    with fsspec.open(url) as file:
        assert file.read() == b"data"


def test_a_local_file_that_ends_early_is_cut_and_a_short_answer_is_not(tmp_path, monkeypatch):
    folder = Folder(str(tmp_path))
    folder.write("a", b"0123456789")
    with pytest.raises(CutFileError, match="asked for bytes 5-11, got 5 of 6"):
        folder.read_range("a", 5, 11)
    monkeypatch.setattr(Folder, "_cat", lambda *_: b"5")
    with pytest.raises(SizeError, match="asked for bytes 5-10, got 1 of 5") as caught:
        folder.read_range("a", 5, 10)
    assert caught.type is SizeError


def test_a_listing_is_asked_for_anew_each_time(memory):
    class Listed(type(memory)):
        kept = None

        def invalidate_cache(self, _path=None):
            self.kept = None

        def find(self, *arguments, **options):
            self.kept = self.kept or super().find(*arguments, **options)
            return self.kept

    folder = Folder.on(Listed(), "/data")
    expected = [{}, None, {"a": 1}]
    assert [folder.list(), Folder("memory://data").write("a", b"1"), folder.list()] == expected
    Folder("memory://data").write("b", b"1")
    assert folder.list() == {"a": 1, "b": 1}


def test_a_download_cut_short_is_asked_for_again(memory, tmp_path):
    folder, left = Folder("memory://data"), [3, 9, 10]
    folder.write("a.tar", b"0123456789")

    class Cut(type(memory)):
        def get_file(self, _path, target, **_):
            Path(target).write_bytes(b"0123456789"[: left.pop(0)])

    Folder.on(Cut(), "/data").download("a.tar", tmp_path / "a.tar")
    assert (tmp_path / "a.tar").read_bytes() == b"0123456789"
    assert left == []
    with pytest.raises(FileNotFoundError):
        folder.download("gone", tmp_path / "c")


def test_a_file_of_a_filesystem_without_a_root_is_found(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("top.txt", b"in an archive")
    folder, name = Folder.of_file(f"zip://top.txt::{tmp_path}/a.zip")
    assert folder.read(name) == b"in an archive"


def test_only_a_local_folder_has_a_path_of_this_machine(tmp_path):
    assert Folder(f"file://{tmp_path}").local_path("a/b") == Path(tmp_path, "a/b")
    assert Folder(str(tmp_path)).local_path() == tmp_path
    assert (
        Folder.of_file("/top")[0].local_path("top") == Folder("/").local_path("top") == Path("/top")
    )
    with pytest.raises(AssertionError, match="memory:///data is not on a local disk"):
        Folder("memory://data").local_path()


def test_a_pipe_is_refused_before_anything_waits_for_its_writer(tmp_path):
    os.mkfifo(tmp_path / "vocab.txt")
    folder = Folder(str(tmp_path))
    for read in (folder.read, folder.open):
        with pytest.raises(ValueError, match=r"vocab\.txt: is a pipe \(FIFO\), expected a file"):
            read("vocab.txt")


def test_a_file_replaces_neither_a_device_nor_a_pipe_nor_a_folder(tmp_path):
    """Root could replace /dev/null by a file, and programs would then read what others wrote."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"/pipe: is a device or a pipe, .*; give the name of a"):
        Folder(str(tmp_path)).write("pipe", b"1")
    for device in ("/dev/null", "/dev/stdout"):
        with pytest.raises(ValueError, match=f"{device}: is a device or a pipe"):
            refuse_other_than_file(Path(device))  # never by a real write: tests may run as root
    with pytest.raises(IsADirectoryError, match=r"Is a directory: '.*/folder'$"):
        Folder(str(tmp_path)).write("folder", b"1")
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe"]
