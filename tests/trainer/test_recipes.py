"""Every recipe in configs/pretrain loads, is planned, and says what its source says."""

from pathlib import Path

import pytest

from pipeline.command_line.program import parse_settings
from trainer.cli import COMMANDS
from trainer.preflight.plan import describe_plan

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "pretrain"
RECIPES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def settings_of(recipe, *more):
    words = ["--config", str(FOLDER / f"{recipe}.yaml"), *more]
    return parse_settings("plan", COMMANDS["plan"], words)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_planned(recipe):
    lines = list(describe_plan(settings_of(recipe)))
    assert lines[0].startswith(f"{settings_of(recipe).model.preset}: ")
    assert any("<- zero_stage" in line for line in lines)
    assert (FOLDER / f"{recipe}.yaml").read_text().startswith("# ")


def test_googles_recipe_is_a_million_steps_of_256():
    phases = settings_of("bert-large").phases
    assert sum(phase.steps for phase in phases) == 1_000_000
    assert {phase.global_batch for phase in phases} == {256}
    first, second = (phase.schedule for phase in phases)
    rates = [first.learning_rate(10_000), second.learning_rate(0)]
    assert rates == pytest.approx([1e-4, 1e-5])
    assert phases[0].schedule.learning_rate(900_000) == pytest.approx(1e-5)


def test_nvidias_learning_rate():
    """run_pretraining.py's PolyWarmUpScheduler, degree 0.5: decay is counted from step 0."""
    first, second = settings_of("bert-large-lamb").phases
    assert (first.global_batch, second.global_batch) == (65_536, 32_768)
    assert second.optimizer_state == "zero_step"
    assert first.num_warmup_steps == 2_001
    assert first.schedule.learning_rate(1_000) == pytest.approx(6e-3 * 1_000 / 2_001)
    assert first.schedule.learning_rate(3_519) == pytest.approx(6e-3 * 0.5**0.5)
    assert second.schedule.learning_rate(1_563 * 3 // 4) == pytest.approx(4e-3 * 0.5, rel=1e-3)


def test_a_budget_is_said_in_the_plan():
    text = "\n".join(describe_plan(settings_of("bert-large-24h", "--world_size", "1")))
    assert "budget of 24 hours" in text
    settings = settings_of("bert-large-24h")
    assert (settings.objective, settings.num_steps) == ("mlm", None)
    assert settings.budget_seconds(0) == 86_400


def test_mlperf_stops_at_its_accuracy():
    validation = settings_of("bert-large-mlperf").validation
    assert (validation.num_instances, validation.stop_at_mlm_accuracy) == (10_000, 0.720)
