"""Checkpoints on their way to a URL and back: what is kept, what damage and faults do."""

import json
import shutil
import time
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
import torch
from torch.nn import Linear

from pipeline.storage import faults
from pipeline.storage.faults import StorageError
from pipeline.storage.folder import Folder
from trainer.checkpoints.files import find_checkpoints, read_state
from trainer.checkpoints.read import load_checkpoint
from trainer.checkpoints.resume import RunCheckpoints, restore_run
from trainer.checkpoints.store import RUN_FILES, CheckpointStore
from trainer.checkpoints.write import CheckpointSaver
from trainer.optim.adamw import AdamW
from trainer.runs.run_folder import RunFolder
from trainer.settings import CheckpointSettings

pytestmark = pytest.mark.engines

URL = "memory://bucket/run"
FACTS = {"id": "abc", "model": {}, "launches": [], "datasets": []}


class Trained:
    """A model of one layer with its optimizer, a run's folder and its saver."""

    def __init__(self, ranks, folder, url=URL, **settings):
        torch.manual_seed(0)
        self.ranks, self.said = ranks, []
        self.engine = SimpleNamespace(
            module=Linear(8, 4), weights=None, zero_optimization_stage=lambda: 0
        )
        self.optimizer = AdamW(self.engine.module.named_parameters())
        self.optimizer.set_learning_rate(0.01)
        self.run = RunFolder(folder)
        folder.mkdir(exist_ok=True)
        for name in RUN_FILES:
            (folder / name).write_text(json.dumps(FACTS) if name == "run.json" else name)
        self.store = CheckpointStore(url) if url else None
        chosen, say = CheckpointSettings(**settings), self.said.append
        self.saver = CheckpointSaver(self.run, chosen, ranks, self.store, say)

    def train(self, step):
        for parameter in self.engine.module.parameters():
            parameter.grad = torch.full_like(parameter, 0.1 * step)
        self.optimizer.step()
        with self.run.metrics.open("a") as file:
            file.write(json.dumps({"step": step}) + "\n")

    def save(self, *steps):
        for step in steps:
            self.train(step)
            self.saver.save({"step": step}, self.engine, self.optimizer)
        self.saver.finish()

    def choose(self, skip_damaged=False):
        places = (self.run, self.store, self.ranks)
        return RunCheckpoints(*places, skip_damaged, self.said.append).choose()

    def weights(self):
        return self.engine.module.weight.detach().clone()


@pytest.fixture
def trained(ranks, bucket, tmp_path, monkeypatch):
    """With a store that is empty, and asked again at once."""
    monkeypatch.setattr(faults, "FIRST_DELAY_SECONDS", 0.001)
    monkeypatch.setattr(faults, "MAX_DELAY_SECONDS", 0.002)
    return Trained(ranks, tmp_path / "run")


def refuse(*_, **__):
    raise TimeoutError("no answer")


def test_anomalies_come_back_from_the_url_and_an_unfinished_row_does_not(trained, tmp_path):
    row = b'{"step": 1}\n'
    trained.run.anomalies.write_bytes(row + b'{"st')
    trained.save(1, 2)
    shutil.rmtree(tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    restore_run(run, CheckpointStore(URL))
    again = Trained(trained.ranks, tmp_path / "run")
    again.choose()
    assert run.anomalies.read_bytes() == row


def test_a_url_of_an_earlier_version_has_no_anomalies_and_is_used(trained, bucket):
    trained.save(1)
    assert bucket.cat_file("/bucket/run/anomalies.jsonl") == b""
    bucket.rm_file("/bucket/run/anomalies.jsonl")
    trained.run.anomalies.write_bytes(b'{"step": 1}\n')
    shutil.rmtree(trained.run.checkpoints)
    assert trained.choose() == trained.run.checkpoints / "step-00000001"
    assert trained.run.anomalies.read_bytes() == b'{"step": 1}\n'


def names_in(bucket):
    found = bucket.find("/bucket/run/checkpoints")
    return sorted({path.split("/")[4] for path in found if path.endswith("COMMITTED")})


def test_a_wiped_disk_comes_back_from_the_url(trained, ranks, tmp_path):
    trained.save(1, 2)
    expected, moments = trained.weights(), trained.optimizer.tensors("exp_avg")[0].clone()
    shutil.rmtree(tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    restore_run(run, CheckpointStore(URL))
    assert sorted(path.name for path in run.path.iterdir()) == sorted(RUN_FILES)
    again = Trained(ranks, tmp_path / "run")
    path = again.choose()
    assert path == run.checkpoints / "step-00000002"
    assert [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()] == [1, 2]
    state = load_checkpoint(path, again.engine, again.optimizer, ranks)
    assert (state["step"], again.optimizer.num_updates) == (2, 2)
    assert torch.equal(again.weights(), expected)
    assert torch.equal(again.optimizer.tensors("exp_avg")[0], moments)


@pytest.mark.parametrize("uploaded", range(5))
def test_an_upload_killed_within_the_files_of_a_run_is_none_or_a_whole_one(
    trained, tmp_path, monkeypatch, uploaded
):
    trained.train(1)
    write, names = Folder.write, []

    def write_some(folder, name, data):
        if len(names) == uploaded:
            raise KeyboardInterrupt
        names.append(name)
        write(folder, name, data)

    monkeypatch.setattr(Folder, "write", write_some)
    with pytest.raises(KeyboardInterrupt):
        trained.store.upload_run(trained.run)
    run = RunFolder(tmp_path / "wiped")
    restore_run(run, CheckpointStore(URL))
    found = sorted(path.name for path in run.path.iterdir()) if run.path.exists() else []
    assert found == (sorted(RUN_FILES) if uploaded >= len(RUN_FILES) else [])


def test_old_ones_and_torn_uploads_are_removed_on_both_sides(ranks, bucket, tmp_path):
    bucket.pipe_file("/bucket/run/checkpoints/step-00000099/state.json", b"{}")
    trained = Trained(ranks, tmp_path / "run", keep=2)
    trained.save(3, 6, 7)
    kept = ["step-00000006", "step-00000007"]
    assert names_in(bucket) == kept
    assert sorted(path.name for path in trained.run.checkpoints.iterdir()) == kept
    assert not bucket.exists("/bucket/run/checkpoints/step-00000099")
    RunCheckpoints(trained.run, trained.store, ranks, False, print).discard_from(7)
    assert names_in(bucket) == kept[:1]
    assert [path.name for path in find_checkpoints(trained.run.checkpoints)[0]] == kept[:1]


def test_a_crash_before_the_marker_leaves_the_one_before(trained, ranks, tmp_path, monkeypatch):
    trained.save(1)
    order, write = [], Folder.write

    def write_or_crash(folder, name, data):
        order.append(name.rpartition("/")[2])
        if name.endswith("step-00000002/COMMITTED"):
            raise KeyboardInterrupt  # as a kill: nothing that follows is done
        write(folder, name, data)

    monkeypatch.setattr(Folder, "write", write_or_crash)
    with pytest.raises(KeyboardInterrupt):
        trained.save(2)
    assert order[-1] == "COMMITTED"
    assert {"state.json", "model.safetensors", "run.json", "metrics.jsonl"} <= set(order[:-1])
    monkeypatch.undo()
    shutil.rmtree(tmp_path / "run")
    again = Trained(ranks, tmp_path / "run")
    assert read_state(again.choose())["step"] == 1


def test_an_upload_that_fails_lastingly_names_url_and_cause(trained, bucket, monkeypatch):
    trained.save(1)
    monkeypatch.setattr(type(bucket), "put_file", refuse)
    trained.train(2)
    trained.saver.save({"step": 2}, trained.engine, trained.optimizer)
    while not trained.saver.has_failed:
        time.sleep(0.01)
    message = (
        r"run/checkpoints/step-00000002/\S+: gave up after 6 attempt\(s\) in .*: no answer; .*"
        r"step-00000002 was not uploaded, those before it are untouched"
    )
    with pytest.raises(StorageError, match=message):
        trained.save(3)
    assert names_in(bucket) == ["step-00000001"]
    assert find_checkpoints(trained.run.checkpoints)[0][-1].name == "step-00000002", "on disk"


def test_a_damaged_checkpoint_is_skipped_with_consent_only(trained, bucket):
    trained.save(1, 2, 3)
    shutil.rmtree(trained.run.checkpoints / "step-00000003")
    weights = "/bucket/run/checkpoints/step-00000003/model.safetensors"
    data = bytearray(bucket.cat_file(weights))
    data[-3] ^= 4
    bucket.pipe_file(weights, bytes(data))
    local = trained.run.checkpoints / "step-00000002" / "state.json"
    local.write_text(local.read_text() + " ")
    said = r"state\.json: bytes is .* or give --checkpoint\.skip_damaged true"
    with pytest.raises(ValueError, match=said):
        read_state(trained.run.checkpoints / "step-00000002")
    with pytest.raises(ValueError, match=r"step-00000003/model\.safetensors: sha256 is"):
        trained.choose()
    assert trained.choose(skip_damaged=True).name == "step-00000001"
    weights, state = (said for said in trained.said if said.startswith("skipped: "))
    assert "step-00000003/model.safetensors: sha256 is" in weights
    assert "step-00000002/state.json: bytes is" in state
    assert names_in(bucket) == ["step-00000001"], "damaged ones do not count any more"
    assert trained.choose().name == "step-00000001"


def test_a_file_missing_at_the_url_is_damage(trained, bucket):
    trained.save(1, 2)
    shutil.rmtree(trained.run.checkpoints)
    bucket.rm_file("/bucket/run/checkpoints/step-00000002/state.json")
    with pytest.raises(ValueError, match=r"step-00000002 is damaged, a file is missing: .*state"):
        trained.choose()
    assert trained.choose(skip_damaged=True).name == "step-00000001"


def test_a_store_that_does_not_answer_is_no_damage(trained, bucket, monkeypatch):
    trained.save(1)
    shutil.rmtree(trained.run.checkpoints)
    monkeypatch.setattr(type(bucket), "get_file", refuse)
    with pytest.raises(StorageError, match="gave up after 6"):
        trained.choose(skip_damaged=True)
    assert names_in(bucket) == ["step-00000001"]


class Spoiled:
    """A store of fsspec whose first answers to a method about some paths are spoiled."""

    def __init__(self, monkeypatch, bucket, method, count, chooses, spoil):
        self.left = count
        answer = getattr(type(bucket), method)

        def request(filesystem, path, *arguments, **options):
            found = answer(filesystem, path, *arguments, **options)
            if self.left and chooses(path):
                self.left -= 1
                return spoil(found, *arguments)
            return found

        monkeypatch.setattr(type(bucket), method, request)


def damage(_, target, **__):
    data = bytearray(Path(target).read_bytes())
    data[len(data) // 2] ^= 4
    Path(target).write_bytes(data)


def deny(*_, **__):
    raise FileNotFoundError("404")


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "COMMITTED"])
@pytest.mark.parametrize("spoil", [damage, deny])
@pytest.mark.parametrize("skip_damaged", [False, True])
def test_one_bad_answer_at_resume_costs_no_checkpoint(
    trained, bucket, monkeypatch, name, spoil, skip_damaged
):
    trained.save(1, 2)
    expected = bucket.cat_file(f"/bucket/run/checkpoints/step-00000002/{name}")
    shutil.rmtree(trained.run.checkpoints)
    spoiled = Spoiled(monkeypatch, bucket, "get_file", 1, lambda path: path.endswith(name), spoil)
    path = trained.choose(skip_damaged)
    assert path.name == "step-00000002"
    assert (path / name).read_bytes() == expected
    assert spoiled.left == 0
    assert names_in(bucket) == ["step-00000001", "step-00000002"]


def without(*names):
    """A listing that leaves out what has one of the names in its path."""
    return lambda found, *_: {
        path: facts for path, facts in found.items() if not any(name in path for name in names)
    }


@pytest.mark.parametrize(
    "left_out", [("step-00000003",), ("COMMITTED",), ("run",), ("step-00000003/COMMITTED",)]
)
def test_half_a_listing_hides_no_checkpoint_and_removes_none(
    trained, bucket, monkeypatch, left_out
):
    trained.save(1, 2, 3)
    shutil.rmtree(trained.run.checkpoints)
    Spoiled(monkeypatch, bucket, "find", 99, lambda _: True, without(*left_out))
    assert trained.choose().name == "step-00000003"
    trained.store.remove_old(3)
    monkeypatch.undo()
    assert names_in(bucket) == ["step-00000001", "step-00000002", "step-00000003"]


def test_a_run_that_had_checkpoints_does_not_begin_again_without_a_word(
    trained, bucket, monkeypatch
):
    assert trained.choose() is None, "a new run"
    trained.save(1, 2)
    shutil.rmtree(trained.run.checkpoints)
    bucket.rm("/bucket/run/checkpoints/step-00000001", recursive=True)
    bucket.rm("/bucket/run/checkpoints/step-00000002", recursive=True)
    said = (
        r"newest\.json says that step-00000002 was saved, but no checkpoint is found in .*run/check"
        r"points or at memory://bucket/run: restore it, or remove .*newest.json and memory://"
    )
    with pytest.raises(ValueError, match=said):
        trained.choose()
    trained.run.newest.unlink()
    with pytest.raises(ValueError, match=r"memory://.*newest\.json says that step-00000002 was"):
        trained.choose()
    bucket.rm_file("/bucket/run/checkpoints/newest.json")
    assert trained.choose() is None


def test_a_run_without_a_url_that_lost_its_checkpoints_refuses(ranks, tmp_path):
    trained = Trained(ranks, tmp_path / "run", url=None)
    trained.save(1)
    shutil.rmtree(trained.run.checkpoints)
    with pytest.raises(ValueError, match=r"newest\.json says that step-00000001 was saved"):
        trained.choose()


def test_the_only_checkpoint_is_skipped_with_consent_and_the_run_begins_again(trained, bucket):
    trained.save(1)
    for place in trained.run.checkpoints, None:
        state = "step-00000001/state.json"
        if place is None:
            bucket.pipe_file(f"/bucket/run/checkpoints/{state}", b"{}")
        else:
            (place / state).write_bytes(b"{}")
    assert trained.choose(skip_damaged=True) is None
    assert trained.choose() is None


def test_a_passing_404_makes_no_new_run_over_another(trained, bucket, monkeypatch):
    trained.save(1)
    run = RunFolder(trained.run.path.parent / "wiped")
    Spoiled(monkeypatch, bucket, "cat_file", 2, lambda path: path.endswith("run.json"), deny)
    restore_run(run, CheckpointStore(URL))
    assert run.read_facts()["id"] == "abc"
    bucket.rm_file("/bucket/run/run.json")
    with pytest.raises(ValueError, match=r"run\.json is missing beside step-00000001: restore"):
        restore_run(RunFolder(trained.run.path.parent / "other"), CheckpointStore(URL))


def test_the_url_of_another_run_is_refused(trained, ranks, tmp_path):
    trained.save(1)
    other = Trained(ranks, tmp_path / "two")
    other.run.facts.write_text(json.dumps({**FACTS, "id": "def"}))
    said = (
        r"--checkpoint\.url memory://bucket/run is taken: found the run abc, expected def, that of"
    )
    with pytest.raises(ValueError, match=said + r" --output .*two; give every run a"):
        restore_run(other.run, other.store)


def test_training_waits_for_one_upload_when_the_next_begins(trained, ranks, bucket, monkeypatch):
    trained.save(1)
    gates = {name: Event() for name in ("step-00000002", "step-00000003")}
    write = Folder.write

    def write_when_open(folder, name, data):
        assert all(gate.wait(600) for step, gate in gates.items() if step in name)
        write(folder, name, data)

    def open_and_join():
        """In place of the upload's `join`: nothing is written before training waits."""
        time.sleep(0.2)
        gates["step-00000002"].set()
        upload_join()

    monkeypatch.setattr(Folder, "write", write_when_open)
    monkeypatch.setattr("trainer.checkpoints.write.WORTH_SAYING_SECONDS", 0.1)
    trained.train(2)
    trained.saver.save({"step": 2}, trained.engine, trained.optimizer)
    at_save = trained.weights()
    trained.train(3)  # while it is being written
    assert names_in(bucket) == ["step-00000001"]
    upload_join = trained.saver._thread.join
    monkeypatch.setattr(trained.saver._thread, "join", open_and_join)
    trained.saver.save({"step": 3}, trained.engine, trained.optimizer)
    assert names_in(bucket) == ["step-00000001", "step-00000002"]
    assert any(said.startswith("waited ") and "step-00000002" in said for said in trained.said)
    gates["step-00000003"].set()
    trained.saver.finish()
    second = trained.run.checkpoints / "step-00000002"
    load_checkpoint(second, trained.engine, trained.optimizer, ranks)
    assert torch.equal(trained.weights(), at_save)


@pytest.mark.parametrize("name", ["{outside}/absolute", "../../outside/up"])
def test_a_marker_that_names_files_elsewhere_writes_nothing_there(trained, bucket, tmp_path, name):
    trained.save(1, 2)
    shutil.rmtree(trained.run.checkpoints)
    outside = tmp_path / "outside"
    outside.mkdir()
    name = name.format(outside=outside)
    there = "/bucket/run/checkpoints/step-00000002"
    files = json.loads(bucket.cat_file(f"{there}/COMMITTED"))["files"]
    marker = json.dumps({"files": files | {name: files["state.json"]}})
    bucket.pipe({f"{there}/COMMITTED": marker.encode(), f"{there}/{name}": b"planted"})
    said = r"memory:///?bucket/run/checkpoints/step-00000002/COMMITTED: found the name"
    with pytest.raises(ValueError, match=said):
        trained.store.fetch_checkpoint("step-00000002", trained.run.checkpoints)
    assert list(outside.iterdir()) == []
    found = {x.relative_to(tmp_path / "run").as_posix() for x in (tmp_path / "run").rglob("*")}
    begun = {f"checkpoints/step-00000002.tmp{end}" for end in ("", "/COMMITTED")}
    assert found == {*RUN_FILES, "metrics.jsonl", "newest.json", "checkpoints"} | begun


def test_what_is_no_checkpoint_at_the_url_stays(ranks, bucket, tmp_path):
    for name in ("notes/a.txt", "step-١٢٣٤٥٦٧٨/a", "step-00000001.bak/COMMITTED"):
        bucket.pipe_file(f"/bucket/run/checkpoints/{name}", b"mine")
    trained = Trained(ranks, tmp_path / "run", keep=1)
    trained.save(1, 2)
    assert trained.store.list_checkpoints() == (["step-00000002"], [])
    assert bucket.exists("/bucket/run/checkpoints/notes/a.txt")
    assert bucket.exists("/bucket/run/checkpoints/step-00000001.bak/COMMITTED")
