"""Nodes that share no folder: each has a disk of its own, checkpoints meet at a URL.

Node a has one rank and node b two. In the second launch b is the first node, which it was not
before.
"""

import dataclasses
import json

import pytest

from tests.trainer import tiny_run
from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import OURS, launch, meeting, write_config
from tests.trainer.two_ranks import run_nodes
from trainer.process.stopping import STOPPED
from trainer.settings import Phase
from trainer.watch.recorder import MEASURED

pytestmark = pytest.mark.engines

STEPS, BATCH, STOP_AFTER = 12, 12, 5


def last_checkpoint(where):
    """Name, sizes and hashes."""
    marker = max(where.glob("checkpoints/step-*/COMMITTED"))
    return marker.parent.name, json.loads(marker.read_bytes())["files"]


def test_they_train_stop_and_go_on_as_one_node_even_when_they_change_places(tmp_path):
    folder, phase = tmp_path, dataclasses.asdict(Phase(16, BATCH, STEPS, 0.003, warmup_steps=2))
    data, url = write_tiny_dataset(folder / "data"), ("--checkpoint.url", f"file://{folder}/url")

    def pretrain(folder, node, *flags):
        (folder / node).mkdir(exist_ok=True)
        return [*write_config(folder / node / "run", data, phases=[phase]), *flags]

    def rows_of(run):
        return tiny_run.rows_of(run, left_out=MEASURED)

    launch(OURS, pretrain(folder, "alone"), 3)
    stop, places = meeting("SIGUSR1", STOP_AFTER), (("a", 1), ("b", 2))
    stopped = run_nodes([([*stop, *pretrain(folder, node, *url)], size) for node, size in places])
    assert [each.returncode for each in stopped] == [STOPPED] * 3, stopped[0].stderr
    saved, _ = last_checkpoint(folder / "url")
    step = int(saved.removeprefix("step-"))
    assert STOP_AFTER <= step < STEPS
    assert not list((folder / "b/run/checkpoints").iterdir()), "pieces that were uploaded"
    places = (("b", 2), ("a", 1))
    again = run_nodes([([*OURS, *pretrain(folder, node, *url)], size) for node, size in places])
    assert [each.returncode for each in again] == [0] * 3, [each.stderr for each in again]
    assert f"continuing after step {step}" in again[0].stderr + again[0].stdout
    assert rows_of(folder / "b/run") == rows_of(folder / "alone/run")
    assert [row["step"] for row in rows_of(folder / "b/run")] == list(range(1, STEPS + 1))
    url, one, two = (last_checkpoint(folder / name) for name in ("url", "alone/run", "b/run"))
    assert url == one == two
    assert last_checkpoint(folder / "a/run")[0] == saved, "of when it was first"
