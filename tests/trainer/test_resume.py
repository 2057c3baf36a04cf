"""From where a run goes on, seen by one rank; the others' answers are given by hand."""

import dataclasses
import json
import re

import pytest

from pipeline.storage.local import replace_file
from trainer.checkpoints import resume
from trainer.checkpoints.files import COMMITTED, describe_file
from trainer.checkpoints.resume import RunCheckpoints, copy_run, restore_run
from trainer.checkpoints.store import RUN_FILES, CheckpointStore
from trainer.process.ranks import Ranks
from trainer.runs.run_folder import RunFolder

pytestmark = pytest.mark.engines

URL = "memory://bucket/run"
FACTS = {"id": "abc", "model": {}, "launches": [], "datasets": []}


def write_run(path, steps=()):
    """A run's folder with committed checkpoints of one small file each."""
    run = RunFolder(path)
    run.checkpoints.mkdir(parents=True)
    for name in RUN_FILES:
        text = json.dumps(FACTS) if name == "run.json" else f"{name} of {path.name}"
        (path / name).write_text(text)
    for step in steps:
        folder = run.checkpoints / f"step-{step:08d}"
        folder.mkdir()
        (folder / "state.json").write_text(f'{{"step": {step}}}')
        files = {"state.json": describe_file(folder / "state.json")}
        (folder / COMMITTED).write_text(json.dumps({"files": files}))
    return run


def upload(run, *steps):
    """The store with the run's files and its checkpoints of these steps."""
    store = CheckpointStore(URL)
    run.metrics.write_text('{"step": 1}\n')
    store.upload_run(run)
    for step in steps:
        name = f"step-{step:08d}"
        store.upload(run.checkpoints / name, name, ["state.json", COMMITTED])
    return store


def choose(run, store, ranks, say=print, **before):
    return RunCheckpoints(run, store, ranks, False, say).choose(**before)


@pytest.fixture
def second(ranks):
    """A rank of the second node."""
    return dataclasses.replace(ranks, rank=1)


@pytest.fixture
def broadcast(tmp_path):
    """The run's files as rank 0 sends them."""
    first = write_run(tmp_path / "rank 0")
    return {name: (first.path / name).read_bytes() for name in RUN_FILES}


@pytest.fixture
def see(monkeypatch, broadcast):
    """see(is_shared, name, is_first): whether it sees rank 0's folder, and what rank 0 chose."""

    def set_answers(is_shared, name=None, is_first=True):
        monkeypatch.setattr(resume, "_see_same_folder", lambda *_: is_shared)
        monkeypatch.setattr(Ranks, "gather", lambda *_: [True, is_shared])
        answer = lambda _, mine: broadcast if isinstance(mine, dict) else name  # noqa: E731
        monkeypatch.setattr(Ranks, "from_first", answer)
        monkeypatch.setenv("LOCAL_RANK", "0" if is_first else "1")

    return set_answers


def names(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_node_of_its_own_gets_what_the_run_is(second, see, broadcast, tmp_path):
    see(is_shared=False)
    own = RunFolder(tmp_path / "own")
    copy_run(own, CheckpointStore(URL), second)
    assert names(own.path) == sorted([*RUN_FILES, "checkpoints"])
    assert {name: (own.path / name).read_bytes() for name in RUN_FILES} == broadcast
    (own.path / "config.yaml").write_text("old")
    copy_run(own, CheckpointStore(URL), second)
    assert (own.path / "config.yaml").read_bytes() == broadcast["config.yaml"]


@pytest.mark.parametrize("killed_at", RUN_FILES)
def test_a_node_that_is_killed_while_it_gets_the_run_gets_it_again(
    second, see, tmp_path, monkeypatch, killed_at
):
    see(is_shared=False)
    own = RunFolder(tmp_path / "own")

    def replace_or_die(path, content):
        if path.name == killed_at:
            raise KeyboardInterrupt
        replace_file(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(resume, "replace_file", replace_or_die)
        with pytest.raises(KeyboardInterrupt):
            copy_run(own, CheckpointStore(URL), second)
    copy_run(own, CheckpointStore(URL), second)
    assert names(own.path) == sorted([*RUN_FILES, "checkpoints"])


@pytest.mark.parametrize(("is_shared", "is_first"), [(False, False), (True, True)])
def test_other_ranks_and_who_sees_the_folder_write_nothing(
    second, see, tmp_path, is_shared, is_first
):
    see(is_shared=is_shared, is_first=is_first)
    copy_run(RunFolder(tmp_path / "own"), CheckpointStore(URL), second)
    assert names(tmp_path / "own") == []


def test_a_node_of_its_own_keeps_what_is_not_this_run(second, see, tmp_path):
    see(is_shared=False)
    other = write_run(tmp_path / "other")
    other.facts.write_text(json.dumps({**FACTS, "id": "def"}))
    said = r"holds another run \(def\) than rank 0's \(abc\); remove it"
    with pytest.raises(ValueError, match=said):
        copy_run(other, CheckpointStore(URL), second)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("x")
    said = r"exists and is not a run, it has no run.json; give another --output, or remove it"
    with pytest.raises(FileExistsError, match=said):
        copy_run(RunFolder(tmp_path / "thesis"), CheckpointStore(URL), second)
    assert (other.path / "config.yaml").read_text() == "config.yaml of other"
    assert names(tmp_path / "thesis") == ["thesis.tex"]


def test_a_node_of_its_own_downloads_to_a_place_of_its_own(second, see, bucket, tmp_path):
    """And has no other checkpoint there, neither an older download nor one of its own."""
    store = upload(write_run(tmp_path / "first", [2, 4]), 2, 4)
    own = write_run(tmp_path / "own", [9])
    see(is_shared=False, name="step-00000002")
    assert choose(own, store, second) == own.downloads / "step-00000002"
    see(is_shared=False, name="step-00000004")
    found = choose(own, store, second)
    assert found == own.downloads / "step-00000004"
    assert names(own.downloads) == ["step-00000004"]
    assert (found / "state.json").read_text() == '{"step": 4}'
    assert names(own.checkpoints) == ["step-00000009"]
    see(is_shared=False, name="step-00000002", is_first=False)
    assert choose(own, store, second) == own.downloads / "step-00000002"
    assert names(own.downloads) == ["step-00000004"], "the first rank of the node downloads"
    see(is_shared=True, name="step-00000009")
    assert choose(own, store, second) == own.checkpoints / "step-00000009"
    see(is_shared=True)
    assert choose(own, store, second) is None


@pytest.mark.parametrize(
    ("seen", "expected"), [([True, True], "step-00000004"), ([True, False], "step-00000002")]
)
def test_where_a_node_cannot_see_the_folder_the_url_decides(
    ranks, see, bucket, tmp_path, monkeypatch, seen, expected
):
    run = write_run(tmp_path / "run", [2, 4])
    see(is_shared=True)
    monkeypatch.setattr(Ranks, "gather", lambda *_: seen)
    monkeypatch.setattr(Ranks, "from_first", lambda _, mine: mine)
    assert choose(run, upload(run, 2), ranks).name == expected


def test_the_newest_is_taken_and_what_is_missing_downloaded(ranks, bucket, tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", [2, 4, 10])
    store = upload(run, 2, 4, 10)
    fetched: list[str] = []
    fetch = CheckpointStore.fetch_checkpoint
    note = lambda self, name, *more: (fetched.append(name), fetch(self, name, *more))[1]  # noqa: E731
    monkeypatch.setattr(CheckpointStore, "fetch_checkpoint", note)
    assert choose(run, store, ranks).name == "step-00000010"
    assert choose(run, store, ranks, before=10).name == "step-00000004"
    assert fetched == []
    (run.checkpoints / "step-00000010" / COMMITTED).unlink()
    assert choose(run, store, ranks).name == "step-00000010"
    assert fetched == ["step-00000010"]
    assert choose(run, store, ranks, before=2) is None
    store.disown("step-00000010")
    (run.checkpoints / "step-00000010" / COMMITTED).unlink()
    said: list[str] = []
    assert choose(run, store, ranks, said.append).name == "step-00000004"
    assert any("step-00000010 was never uploaded whole" in each for each in said)


def test_what_a_wiped_node_lacks_comes_back_and_what_it_has_stays(bucket, tmp_path):
    store = upload(write_run(tmp_path / "first"))
    own = RunFolder(tmp_path / "own")
    restore_run(own, store)
    assert names(own.path) == sorted(RUN_FILES)
    (own.path / "vocab.txt").unlink()
    (own.path / "config.yaml").write_text("own")
    restore_run(own, store)
    assert (own.path / "vocab.txt").read_text() == "vocab.txt of first"
    assert (own.path / "config.yaml").read_text() == "own"


def test_nothing_comes_back_into_what_is_no_run_or_from_an_empty_url(bucket, tmp_path):
    own = RunFolder(tmp_path / "own")
    restore_run(own, CheckpointStore(URL))
    assert not own.path.exists()
    upload(write_run(tmp_path / "first"))
    own.path.mkdir()
    (own.path / "thesis.tex").write_text("x")
    restore_run(own, CheckpointStore(URL))
    assert names(own.path) == ["thesis.tex"]


def test_a_damaged_run_json_is_named_in_the_folder_and_at_the_url(bucket, tmp_path):
    run = write_run(tmp_path / "run")
    store = upload(run)
    run.facts.write_text("{")
    said = rf"^{re.escape(str(run.facts))} is damaged, it is not JSON: "
    with pytest.raises(ValueError, match=said):
        restore_run(run, store)
    bucket.pipe_file("/bucket/run/run.json", b"{}")
    said = r"^memory:///?bucket/run/run.json lacks id: it is damaged, or of an earlier"
    with pytest.raises(ValueError, match=said):
        restore_run(run, store)


def test_who_sees_the_folder_knows_it_by_the_lock_of_rank_0(ranks, second, tmp_path, monkeypatch):
    run = write_run(tmp_path / "run")
    monkeypatch.setattr(Ranks, "from_first", lambda self, mine: b"the job" if self.rank else mine)
    assert not resume._see_same_folder(run, second), "there is no lock"
    run.lock.write_bytes(b"another job")
    assert not resume._see_same_folder(run, second)
    assert resume._see_same_folder(run, ranks), "rank 0 sees its own"
    run.lock.write_bytes(b"the job")
    assert resume._see_same_folder(run, second)
