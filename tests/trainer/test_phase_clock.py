"""By steps or by time: learning rate, end of a phase, and the optimizer's state in it."""

import dataclasses

import pytest
import torch

from trainer.optim.adamw import AdamW
from trainer.pretrain.loop import PhaseClock, begin_phase, finish_at_accuracy
from trainer.pretrain.run import Position
from trainer.settings import Phase, PretrainSettings, ValidationSettings

PHASE = Phase(seq_len=16, global_batch=4, steps=100, peak_lr=1.0, warmup_steps=10)


def test_by_steps_time_does_not_matter():
    clock = PhaseClock(PHASE, None, 0.0)
    assert clock.learning_rate(5, elapsed_seconds=1e6) == 0.5
    assert [clock.ends(made, 1e6) for made in (99, 100)] == [False, True]


def test_by_time_steps_do_not_matter():
    clock = PhaseClock(PHASE, 50.0, 0.0)
    rates = [clock.learning_rate(7, seconds) for seconds in (0.0, 2.5, 5.0, 27.5, 50.0, 60.0)]
    assert rates == pytest.approx([0.0, 0.5, 1.0, 0.5, 0.0, 0.0])
    assert [clock.ends(1_000, seconds) for seconds in (49.9, 50.0)] == [False, True]


def test_a_continued_phase_goes_on_where_it_was():
    assert PhaseClock(PHASE, 50.0, 30.0).elapsed_seconds == pytest.approx(30.0, abs=1.0)


def test_phases_share_the_budget_by_their_steps():
    phases = [PHASE, dataclasses.replace(PHASE, steps=300)]
    settings = PretrainSettings(data=["d"], output="o", phases=phases, budget_hours=2.0)
    assert [settings.budget_seconds(index) for index in (0, 1)] == [1_800.0, 5_400.0]


STATES = [("keep", 3, 1.0), ("zero_step", 0, 1.0), ("reset", 0, 0.0)]


@pytest.mark.parametrize(("state", "updates", "moment"), STATES)
def test_what_a_phase_does_with_the_state(state, updates, moment):
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = AdamW([("a.weight", weight)])
    optimizer.tensors("exp_avg")[0].fill_(1.0)
    optimizer.num_updates = 3
    begin_phase(optimizer, dataclasses.replace(PHASE, optimizer_state=state))
    assert optimizer.num_updates == updates
    assert optimizer.tensors("exp_avg")[0][0, 0] == moment


def test_an_accuracy_finishes_the_run():
    target, phases = ValidationSettings(stop_at_mlm_accuracy=0.5), [PHASE, PHASE]
    settings = PretrainSettings(data=["d"], output="o", phases=phases, validation=target)
    position = Position(step=7, phase=0, phase_step=7, streams={"16": {"position": 28}})
    assert finish_at_accuracy(position, 0.49, settings) is position
    finished = Position(step=7, phase=2, streams=position.streams)
    assert finish_at_accuracy(position, 0.5, settings) == finished
