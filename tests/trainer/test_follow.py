"""Training while the build runs: the same batches, and plain words where it does not go on."""

import dataclasses
import json
import os
import shutil
import signal
import threading
import time
from itertools import islice
from pathlib import Path

import pytest
import torch

from pipeline.shards import growing
from pipeline.shards import manifest as tables
from pipeline.shards.dataset import open_dataset
from pipeline.shards.growing import PLAN, WaitPolicy, open_growing, publish_pass
from pipeline.shards.records import Group
from pipeline.storage.folder import Folder
from tests.datasets import write_corpus
from tests.loaded_python import Program, run_python
from tests.trainer.step_loader import load_steps
from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import rows_of
from trainer.stream.order.source import open_mixture
from trainer.stream.step import RankStep

SIZES = {"rank": 0, "world_size": 1, "global_batch": 24, "micro_tokens": 8192, "seed": 3}
TRAIN = ((60, 45), (50, 37), (41, 70))


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch):
    monkeypatch.setattr("pipeline.shards.growing.MAX_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr("pipeline.shards.growing.FIRST_PAUSE_SECONDS", 0.01)


class Build:
    """Does in `folder`, step by step, what a build of the dataset `whole` does."""

    def __init__(self, whole: Path, folder: Path, seq_len: int = 8192) -> None:
        self.whole, self.folder, self.seq_len = open_dataset(str(whole)), folder, seq_len
        self.settings_hash = self.whole.manifest.settings_hash

    def plan(self, passes: int = 3) -> None:
        manifest = self.whole.manifest
        groups = [(each.split, each.seq_len, passes, each.shards) for each in manifest.groups]
        known = {"groups": tuple(Group(*each, *[0] * 6) for each in groups)}
        unknown = {"root_hash": growing.UNKNOWN_HASH, "tables_sha256": {}}
        plan = dataclasses.replace(manifest, **known, **unknown)
        Folder(str(self.folder)).write(PLAN, plan.to_json())
        self.copy("vocab.txt", "tokenizer.json")

    def copy(self, *names: str) -> None:
        for name in names:
            Folder(str(self.folder)).write(name, self.whole.read_file(name))

    def finish_pass(self, number: int, split: str = "train") -> None:
        shards = self.whole.shards(split, self.seq_len, number)
        self.copy(*(shard.name for shard in shards))
        rows = [(shard, self.whole.blocks(shard)) for shard in shards]
        publish_pass(Folder(str(self.folder)), rows, self.settings_hash)

    def end(self) -> None:
        self.copy(tables.SHARDS_TABLE, tables.BLOCKS_TABLE, tables.MANIFEST)
        shutil.rmtree(self.folder / growing.RECORDS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, make_dataset) -> Path:
    return make_dataset(tmp_path_factory.mktemp("whole") / "data", TRAIN)


@pytest.fixture
def build(whole, tmp_path) -> Build:
    return Build(whole, tmp_path / "data")


def seen_of(step: RankStep) -> tuple[list[int], dict]:
    return torch.cat([batch.input_ids for batch in step.micro_batches]).tolist(), step.state


def test_batches_are_those_of_the_finished_dataset(whole, build):
    with load_steps(open_dataset(str(whole)), "train", 8192, **SIZES) as finished:
        expected = list(islice(finished, 30))
    said: list[str] = []
    waits = lambda: any("waiting for" in line and "pass-01" in line for line in said)  # noqa: E731
    actions = (
        build.plan, lambda: time.sleep(0.1), lambda: build.finish_pass(0),
        lambda: wait_until(waits), lambda: build.finish_pass(1),
        lambda: time.sleep(0.3), lambda: build.finish_pass(2), build.end,
    )  # fmt: skip
    builder = threading.Thread(target=lambda: [action() for action in actions])
    builder.start()
    wait_policy = WaitPolicy(300, said.append)
    [followed] = open_mixture([str(build.folder)], wait_policy=wait_policy)
    with load_steps((followed,), "train", 8192, **SIZES, wait_policy=wait_policy) as loader:
        steps = list(islice(loader, 30))
    builder.join()
    assert [*map(seen_of, steps)] == [*map(seen_of, expected)]
    assert "train/L8192/pass-01 to be built: there after" in "\n".join(said)


def test_steps_of_the_passes_there_do_not_wait(build):
    build.plan()
    build.finish_pass(0)
    data, wait_policy = open_growing(str(build.folder)), WaitPolicy(0.3)
    with load_steps(data, "train", 8192, **SIZES, wait_policy=wait_policy) as loader:
        taken = list(islice(loader, 4))  # 105 instances: 4 whole steps
        assert sum(step.num_instances for step in taken) == 96
        said = r"waited \d s for .*pass-01 to be built, the last 0.3 s without a new"
        with pytest.raises(FileNotFoundError, match=said):
            next(loader)


def test_a_build_that_never_began_is_named(tmp_path):
    said = r"s for the build of .*nothing to come to its shards, the last 0.1 s"
    with pytest.raises(FileNotFoundError, match=said):
        open_growing(str(tmp_path / "nothing"), wait_policy=WaitPolicy(0.1))


def test_a_build_that_ends_with_fewer_passes_is_named(build):
    build.plan(passes=5)
    for number in range(3):
        build.finish_pass(number)
    followed = open_growing(str(build.folder))
    assert followed.find_pass("train", 8192, 2)
    assert not followed.find_pass("train", 8192, 3)
    build.end()
    said = r"the build ended without train/L8192/pass-03, of 5 passes planned"
    with pytest.raises(ValueError, match=said):
        followed.find_pass("train", 8192, 3)


def test_a_pass_of_another_build_is_refused(build):
    build.plan()
    build.settings_hash = "0" * 64
    build.finish_pass(0)
    with pytest.raises(ValueError, match=r"pass-00/pass.json belongs to a build of other settings"):
        open_growing(str(build.folder)).find_pass("train", 8192, 0)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda data: data[:-30], "not a list of shards: JSONDecodeError"),
        (lambda _: b"[]", "not a list of shards: TypeError"),
        (
            lambda data: data.replace(b'ks_hash": "', b'ks_hash": "0'),
            "not a list .*blocks_hash: found",
        ),
        (lambda data: data.replace(b": 60,", b": 61,"), "is damaged: its hashes are not those of"),
    ],
)
def test_a_damaged_pass_json_is_named(build, spoil, said):
    build.plan()
    build.finish_pass(0)
    path = build.folder / "train/L8192/pass-00/pass.json"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ValueError, match=rf"pass-00/pass.json:? {said}.*; run the build again"):
        open_growing(str(build.folder)).find_pass("train", 8192, 0)


def test_an_object_store_is_followed_though_it_keeps_listings(build, bucket):
    """As s3fs does, which answers from a listing until it is told to forget it."""
    listed: list[str] = []

    class Listing(type(bucket)):
        cachable = False

        def invalidate_cache(self, _path=None):
            listed.clear()

        def info(self, path, **kwargs):
            if not listed:
                listed.extend(bucket.find("/growing"))
            if path not in listed:
                raise FileNotFoundError(path)
            return bucket.info(path, **kwargs)

    build.plan()
    bucket.put(f"{build.folder}/", "/growing/", recursive=True)
    opened = open_growing("memory://growing")
    followed = growing.GrowingDataset(Folder.on(Listing(), opened.folder.path), opened.manifest)
    assert not followed.find_pass("train", 8192, 0)
    build.finish_pass(0)
    bucket.put(f"{build.folder}/", "/growing/", recursive=True)
    assert followed.find_pass("train", 8192, 0)


LARGE = "seq_len: 64, global_batch: 512"
SMALL = "{hidden_size: 24, num_heads: 3, intermediate_size: 40}"
TRAINING = ["--model.preset", "tiny", "--model.overrides", SMALL, "--validation.interval", "0"]


def train_command(data: Path, output: Path, *flags: str, sizes: str = LARGE) -> list[str]:
    phases = f"[{{{sizes}, steps: 9, peak_lr: 1e-4}}]"
    named = ["--data", str(data), "--output", str(output), "--phases", phases]
    return ["-m", "trainer", "pretrain", *named, *TRAINING, *flags]


def losses_of(run: Path) -> list[tuple]:
    return [(row["step"], row["loss"], row["position"]) for row in rows_of(run)]


def wait_until(condition, seconds: float = 600.0) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "nothing happened"
        time.sleep(0.02)


@pytest.mark.engines
def test_build_and_training_at_once(tmp_path):
    """Passes have some 2,500 instances, in 8 shards each."""
    corpus, data = write_corpus(tmp_path, 600), tmp_path / "data"
    flags = ["--passes", 6, "--seq_lens", 64, "--num_buckets", 8, "--workers", 1, "--output", data]
    flags += ["--input", corpus / "a.jsonl", "--vocab", corpus / "vocab.txt"]
    waiting = ("--follow", "true", "--follow_limit_minutes", "10")
    with Program(train_command(data, tmp_path / "followed", *waiting)) as training:
        waits = lambda: "waiting for the build" in training.said()  # noqa: E731
        wait_until(lambda: waits() or training.poll() is not None)
        building = run_python(["-m", "pipeline", "build", *flags])
        assert building.returncode == 0, building.stderr
        followed = training.wait()
    assert followed.returncode == 0, followed.stderr
    assert "to come to its shards: there after" in followed.stdout
    published = sorted(data.glob("train/L64/pass-*/pass.json"))
    written = [path.stat().st_mtime_ns for path in published]
    assert written == sorted(written), "one by one"
    verified = run_python(["-m", "pipeline", "verify", data])
    assert verified.returncode == 0, verified.stdout
    assert not (data / "_tasks").exists()
    after = run_python(train_command(data, tmp_path / "after"))
    assert after.returncode == 0, after.stderr
    assert losses_of(tmp_path / "followed") == losses_of(tmp_path / "after")
    facts = json.loads((tmp_path / "followed/run.json").read_text())
    assert facts["datasets"][0]["settings_hash"] == open_dataset(str(data)).manifest.settings_hash


@pytest.mark.engines
def test_a_signal_while_waiting_saves_and_leaves(tmp_path):
    """One pass of 450 instances is there: seven steps of 64, then a wait that SIGTERM ends."""
    build = Build(write_tiny_dataset(tmp_path / "whole"), tmp_path / "data", seq_len=16)
    build.plan(passes=2)
    build.finish_pass(0)
    build.finish_pass(0, split="validation")
    sizes = "seq_len: 16, global_batch: 64"
    command = train_command(build.folder, tmp_path / "run", "--follow", "true", sizes=sizes)
    rows = tmp_path / "run/metrics.jsonl"
    with Program(command) as training:

        def has_come_far() -> bool:
            made = rows.read_text().splitlines() if rows.exists() else []
            return len(made) == 7 and "pass-01 to be built" in training.said()

        wait_until(lambda: has_come_far() or training.poll() is not None)
        os.kill(training.pid, signal.SIGTERM)
        stopped = training.wait()
    assert stopped.returncode == 143, stopped.stderr
    assert "stopped by a signal and saved after step 7" in stopped.stdout + stopped.stderr
    assert (tmp_path / "run/checkpoints/step-00000007/COMMITTED").is_file()
    build.finish_pass(1)
    again = run_python(command)
    assert again.returncode == 0, again.stderr
    assert "continuing after step 7" in again.stdout
    assert [step for step, *_ in losses_of(tmp_path / "run")] == list(range(1, 10))


@pytest.mark.engines
def test_documents_are_left_out_of_passes_that_come_later(tmp_path):
    """The second pass appears while the run waits for it; the last steps read it."""
    build = Build(write_tiny_dataset(tmp_path / "whole"), tmp_path / "data", seq_len=16)
    build.plan(passes=2)
    build.finish_pass(0)
    build.finish_pass(0, split="validation")
    listed = tmp_path / "list"
    listed.write_text("".join(f"{document:016x}\n" for document in range(30, 50)))
    flags = ("--leave_out", str(listed), "--cache_dir", str(tmp_path / "cache"))
    sizes = "seq_len: 16, global_batch: 64"
    command = train_command(
        build.folder, tmp_path / "followed", "--follow", "true", *flags, sizes=sizes
    )
    with Program(command) as training:
        waits = lambda: "pass-01 to be built" in training.said()  # noqa: E731
        wait_until(lambda: waits() or training.poll() is not None)
        build.finish_pass(1)
        build.end()
        followed = training.wait()
    assert followed.returncode == 0, followed.stderr
    whole = run_python(train_command(tmp_path / "whole", tmp_path / "after", *flags, sizes=sizes))
    assert whole.returncode == 0, whole.stderr
    assert losses_of(tmp_path / "followed") == losses_of(tmp_path / "after")
    [*_, (step, _, position)] = losses_of(tmp_path / "followed")
    # Both shards of a pass have 20 listed instances, and the first pass has 450 instances.
    assert step == 9
    assert position > 8 * 64 + 40
    last = "checkpoints/step-00000009"
    for file in (tmp_path / "after" / last).iterdir():
        assert file.read_bytes() == (tmp_path / "followed" / last / file.name).read_bytes()
