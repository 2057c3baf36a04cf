"""The order in which writes become durable: a loss of power leaves nothing that looks whole.

Every fsync, rename and removal is written down as it happens; that a kill happens to miss a gap
proves nothing.
"""

import os
import shutil
from pathlib import Path

import pytest

from pipeline.storage.folder import Folder
from pipeline.storage.local import TEMPORARY_MARK, make_durable
from tests.trainer.test_uploads import Trained
from trainer.checkpoints.files import COMMITTED, remove_folders
from trainer.checkpoints.store import CheckpointStore

STEP = "step-00000001"
FILES = ["fragments-00000-of-00001.safetensors", "model.safetensors"]


@pytest.fixture
def events(tmp_path, monkeypatch):
    """What happens below tmp_path, in order: ("fsync", path), ("rename", TEMPORARY, to) ..."""
    happened = []

    def name(path):
        path = Path(path)
        shown = "TEMPORARY" if TEMPORARY_MARK in path.name else path.name
        return str((path.parent / shown).relative_to(tmp_path))

    def noted(what, function, of=lambda *arguments: arguments):
        def call(*arguments, **options):
            paths = of(*arguments)
            if all(Path(each).is_relative_to(tmp_path) for each in paths):
                happened.append((what, *map(name, paths)))
            return function(*arguments, **options)

        return call

    opened = lambda fd: [os.readlink(f"/proc/self/fd/{fd}")]  # noqa: E731
    monkeypatch.setattr(os, "fsync", noted("fsync", os.fsync, opened))
    monkeypatch.setattr(Path, "rename", noted("rename", Path.rename))
    monkeypatch.setattr(Path, "replace", noted("rename", Path.replace))
    monkeypatch.setattr(Path, "unlink", noted("unlink", Path.unlink))
    monkeypatch.setattr(shutil, "rmtree", noted("rmtree", shutil.rmtree, lambda path: [path]))
    return happened


@pytest.mark.engines
def test_the_marker_is_written_last_and_removed_first(ranks, tmp_path, events, monkeypatch):
    """The checkpoint has its name last, and loses it when the marker is gone for good."""
    trained = Trained(ranks, tmp_path / "run", url=None)
    write = Path.write_text
    note = lambda path, text: (events.append(("write", path.name)), write(path, text))  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", note)
        events.clear()
        trained.save(1)
    final = f"run/checkpoints/{STEP}"
    folder = f"{final}.tmp"
    assert events[:2] == [("rmtree", final), ("rmtree", folder)]
    assert sorted(events[2:4]) == [("fsync", f"{folder}/{each}") for each in FILES]  # in any order
    assert events[4:] == [
        ("write", "state.json"), ("fsync", f"{folder}/state.json"), ("fsync", folder),
        ("write", COMMITTED), ("fsync", f"{folder}/{COMMITTED}"), ("fsync", folder),
        ("rename", folder, final), ("fsync", "run/checkpoints"),
        ("fsync", "run/TEMPORARY"), ("rename", "run/TEMPORARY", "run/newest.json"),
        ("fsync", "run"), ("unlink", "run/TEMPORARY"),
    ]  # fmt: skip
    events.clear()
    remove_folders(trained.run.checkpoints / STEP)
    assert events == [("unlink", f"{final}/{COMMITTED}"), ("fsync", final), ("rmtree", final)]
    assert not (trained.run.checkpoints / STEP).exists()


@pytest.mark.engines
def test_at_a_url_the_marker_is_removed_first(ranks, bucket, tmp_path, monkeypatch):
    trained = Trained(ranks, tmp_path / "run")
    trained.save(1)
    removed, remove = [], type(bucket).rm_file
    note = lambda store, path: (removed.append(Path(path).name), remove(store, path))  # noqa: E731
    monkeypatch.setattr(type(bucket), "rm_file", note)
    trained.store.remove_checkpoints([STEP])
    assert removed[0] == COMMITTED
    assert sorted(removed[1:]) == [*FILES, "state.json"]  # several at once, in any order


@pytest.mark.engines
def test_a_downloaded_checkpoint_is_on_the_disk_before_its_name(ranks, bucket, tmp_path, events):
    trained = Trained(ranks, tmp_path / "run")
    trained.save(1)
    events.clear()
    CheckpointStore(trained.store.url).fetch_checkpoint(STEP, tmp_path / "other")
    assert [each for each in events if each[0] != "rmtree"] == [
        *(("fsync", f"other/{STEP}.tmp/{each}") for each in [COMMITTED, *FILES, "state.json"]),
        ("fsync", f"other/{STEP}.tmp"),
        ("rename", f"other/{STEP}.tmp", f"other/{STEP}"),
    ]


@pytest.mark.parametrize("is_file", [False, True])
def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, events, is_file):
    source = tmp_path / "source"
    source.write_bytes(b"data")
    Folder(str(tmp_path)).write("a/b/file", source if is_file else b"data")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"data"
    assert events == [
        ("fsync", "."),  # which has the new folder
        ("fsync", "a"),
        ("fsync", "a/b/TEMPORARY"),
        ("rename", "a/b/TEMPORARY", "a/b/file"),
        ("fsync", "a/b"),
        ("unlink", "a/b/TEMPORARY"),
    ]


def test_two_ranks_of_a_node_may_remove_one_folder_of_pieces(tmp_path, monkeypatch):
    pieces = tmp_path / "step-00000006.tmp"
    pieces.mkdir()
    (pieces / COMMITTED).touch()

    def after_the_other_rank(path):
        shutil.rmtree(pieces)
        make_durable(path)

    monkeypatch.setattr("trainer.checkpoints.files.make_durable", after_the_other_rank)
    remove_folders(pieces)
    assert not pieces.exists()
