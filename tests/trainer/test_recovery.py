"""Whole runs that meet bad data, or go on with other numbers of ranks, against one that does not.

Run as a program, this file is one rank: `test_recovery.py pretrain ...` spoils rank 1's gradients
at certain positions of the stream.
"""

import dataclasses
import json
import math
import re
import sys

import pytest

from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import OURS, launch, meeting, rows_of, write_config
from trainer.checkpoints.files import find_checkpoints, read_state
from trainer.checkpoints.read import read_weights
from trainer.cli import main
from trainer.process.stopping import STOPPED
from trainer.settings import Phase

pytestmark = pytest.mark.engines

STEPS, BATCH = 80, 12
# First positions of global batches, and what their gradients are multiplied by on rank 1.
NOT_FINITE, SPIKE = 8 * BATCH, 18 * BATCH
ROW_OF_BAD = [first * BATCH for first in range(25, 30)]
FACTORS = {NOT_FINITE: math.nan, SPIKE: 1e4, **dict.fromkeys(ROW_OF_BAD, math.nan)}


def spoil():
    from trainer.optim.sharded import ShardedOptimizer
    from trainer.pretrain import loop

    agreed_steps, step, current = loop._agreed_steps, ShardedOptimizer.step, {}

    def noting_steps(run, phase, clock):
        for rank_step, *others in agreed_steps(run, phase, clock):
            factor = FACTORS.get(rank_step.first_position, 1.0)
            current["factor"] = factor if run.ranks.rank == 1 else 1.0
            yield rank_step, *others

    def spoiling_step(self, closure=None):
        for tensor in self.owned:
            tensor.grad.mul_(current["factor"])
        return step(self, closure)

    loop._agreed_steps = noting_steps
    ShardedOptimizer.step = spoiling_step


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder with three runs, and what the ranks of the spoiled one said."""
    folder = tmp_path_factory.mktemp("recovery")
    data = write_tiny_dataset(folder / "data")
    phase = dataclasses.asdict(Phase(16, BATCH, STEPS, 0.003, warmup_steps=2))
    settings = {"phases": [phase], "checkpoint": {"interval": 10, "keep": 0}}

    def command(name, *flags):
        return [*write_config(folder / name, data, **settings), *flags]

    launch(OURS, command("calm"), 2)
    said = launch([__file__], command("spoiled"), 2)
    other = ("--zero_stage", "2")
    launch(meeting("SIGUSR1", 6), command("elastic"), 2, expected=STOPPED)
    launch(meeting("SIGUSR1", 13), command("elastic", *other), 1, expected=STOPPED)
    launch(OURS, command("elastic", *other), 3)
    return folder, said


def test_what_was_skipped_is_written_down_with_its_instances(runs):
    lines = (runs[0] / "spoiled" / "anomalies.jsonl").read_text()
    rows = [json.loads(line) for line in lines.splitlines()]
    assert [row["positions"][0] for row in rows] == [NOT_FINITE, SPIKE, *ROW_OF_BAD]
    assert [row["in_a_row"] for row in rows] == [1, 1, 1, 2, 3, 4, 5]
    assert [row["grad_norm"] for row in rows if row["positions"][0] != SPIKE] == ["nan"] * 6
    assert rows[1]["grad_norm"] > rows[1]["limit"] > 1
    for row in rows:
        places = [re.fullmatch(r".*\.tar:(\d+)-(\d+)", each).groups() for each in row["instances"]]
        assert sum(int(stop) - int(start) for start, stop in places) == BATCH


def test_too_many_in_a_row_send_the_run_back_and_their_instances_are_left_out(runs):
    folder, said = runs
    left_out = "their instances, 0:300-360 for --skip, are left out"
    assert f"back to step 20, 5 steps in a row were not taken; {left_out}" in said
    rows = rows_of(folder / "spoiled")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    taken = [first * BATCH for first in range(STEPS + 5) if first * BATCH not in ROW_OF_BAD]
    assert [row["position"] for row in rows] == taken
    assert rows[-1]["steps_skipped"] == 7
    state = read_state(find_checkpoints(folder / "spoiled" / "checkpoints")[0][-1])
    assert state["guard"]["left_out"] == [[0, 300, 360]]
    assert (state["guard"]["num_rollbacks"], state["guard"]["num_skipped"]) == (1, 7)
    assert state["num_updates"] == STEPS - 2, "of the steps that were kept, two moved nothing"


def test_the_end_is_that_of_a_clean_run(runs):
    ends = [rows_of(runs[0] / name, "validation")[-1] for name in ("calm", "spoiled")]
    assert [row["step"] for row in ends] == [STEPS] * 2
    calm, spoiled = (row["mlm_loss"] for row in ends)
    assert spoiled == pytest.approx(calm, rel=0.01)


def test_two_one_and_three_ranks_train_as_two(runs):
    calm, elastic = (rows_of(runs[0] / name) for name in ("calm", "elastic"))
    for key in ("step", "position", "instances", "tokens"):
        assert [row[key] for row in elastic] == [row[key] for row in calm]
    losses = [[row["loss"] for row in rows[:20]] for rows in (elastic, calm)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    path = "checkpoints/step-00000020"
    expected, found = (read_weights(runs[0] / name / path) for name in ("calm", "elastic"))
    assert set(expected) == set(found)
    assert max(float((expected[name] - found[name]).abs().max()) for name in expected) <= 1e-5
    assert all(weight.any() for weight in found.values() if weight.ndim > 1)


if __name__ == "__main__":
    spoil()
    sys.exit(main(sys.argv[1:]))
