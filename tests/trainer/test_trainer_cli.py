"""Settings of a run from files and flags, and one message for each that makes no sense."""

import shlex
from pathlib import Path

import pytest
import yaml

from pipeline.command_line.program import parse_settings
from trainer.cli import COMMANDS, main
from trainer.optim.settings import OptimizerSettings
from trainer.preflight.plan import describe_plan
from trainer.runs.run_folder import to_yaml
from trainer.settings import OF_PHASES, Phase, PretrainSettings, ValidationSettings, resolve

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "pretrain"
RECIPES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
BASE, TINY = (f"--config configs/pretrain/bert-{name}.yaml" for name in ("base", "tiny"))
NONE = [None, None]
LAMB, MUON = (OptimizerSettings(name=name) for name in ("lamb", "muon"))
PHASE = {"seq_len": 128, "global_batch": 8, "steps": 10, "peak_lr": 0.1}


def parsed(line, command="pretrain"):
    words = shlex.split(f"--data D --output R {line}")
    return parse_settings(f"trainer {command}", COMMANDS[command], words)


@pytest.mark.parametrize(
    ("flags", "values"),
    [
        ("--peak_lr 1e-3 2e-4", {"peak_lr": [1e-3, 2e-4]}),
        ("--global_batch 16 8 --steps 40000", {"global_batch": [16, 8], "steps": [40_000] * 2}),
        ("--steps 40 --warmup_steps 7 4", {"num_warmup_steps": [7, 4], "warmup_fraction": NONE}),
        ("--steps 60 9 --warmup_fraction .05", {"num_warmup_steps": [3, 0], "warmup_steps": NONE}),
        ("--phases.end_lr 1e-6", {"end_lr": [1e-6, 1e-6]}),
    ],
)
def test_flags_for_all_phases_or_for_each(flags, values):
    phases = resolve(parsed(f"{BASE} {flags}")).phases
    assert {name: [getattr(phase, name) for phase in phases] for name in values} == values


def test_what_is_given_for_phases_is_written_into_them_alone():
    settings = resolve(parsed(f"{BASE} --peak_lr 3e-4 --seed 7"))
    assert "peak_lr: 0.0003" in to_yaml(settings)
    assert yaml.safe_load(to_yaml(settings)).keys().isdisjoint(OF_PHASES)


def test_doctor_takes_the_place_of_pretrain():
    settings = parsed(f"{BASE} --peak_lr 1e-4", "doctor")
    assert (settings.data, settings.output) == (["D"], "R")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": 0}, "steps of a phase is 0"),
        ({"global_batch": -1}, "global_batch of a phase is -1"),
        ({"warmup_steps": 11}, "warmup_steps is 11 and a phase has 10 steps"),
        ({"warmup_steps": 1, "warmup_fraction": 0.1}, "both warmup_fraction and warmup_steps"),
        ({"peak_lr": 0.0}, "peak_lr 0.0 must be above 0"),
        ({"end_lr": 0.2}, "end_lr 0.2 must be in 0 to peak_lr, which is 0.1"),
    ],
)
def test_phases_that_make_no_sense(changed, message):
    with pytest.raises(ValueError, match=message):
        Phase(**{**PHASE, **changed})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"phases": []}, "phases is empty"),
        ({"steps": [1, 2]}, "--steps has 2 values and there is 1 phase; give one for all, or 1"),
        ({"skip": ["0:9-9"]}, "skip: '0:9-9' is not PHASE:START-STOP, with"),
        ({"skip": ["1:3-9"]}, "START-STOP, with a PHASE from 0 to 0 and START"),
        ({"skip": ["3-9"]}, "skip: '3-9' is not"),
        ({"micro_tokens": 100}, "micro_tokens 100 cannot hold one instance of 128 tokens"),
        ({"masking": "dynamic"}, "masking is 'dynamic'; give static, a share such as 0.15, or"),
        ({"masking": "0.0"}, "masking is '0.0'; .* above 0 and at most 0.5"),
        ({"masking": "0.6-0.15"}, "masking is '0.6-0.15'; .* above 0 and at most 0.5"),
        ({"masking": "15"}, "masking is '15'"),
        ({"masking": "0.15", "objective": "left-to-right"}, "left-to-right masks nothing"),
        ({"nsp_weight": 0.0}, r"nsp_weight is 0\.0, not above 0; objective mlm leaves"),
        ({"masking": "0.3-0.15", "budget_hours": 2.0}, "budget_hours leaves their number open"),
        ({"zero_stage": 3, "optimizer": LAMB}, "lamb cannot run under zero_stage 3: its"),
        ({"zero_stage": 3, "optimizer": MUON}, "muon cannot run under zero_stage 3: its"),
        ({"zero_stage": 3, "compile": True}, "compile does not work with zero_stage 3"),
        ({"budget_hours": 0.0}, r"budget_hours is 0\.0; it must be above 0"),
        ({"validation": ValidationSettings(stop_at_mlm_accuracy=72.0)}, r"accuracy is 72\.0"),
    ],
)
def test_settings_that_make_no_sense(changed, message):
    fields = {"data": ["D"], "output": "R", "phases": [Phase(**PHASE)], **changed}
    with pytest.raises(ValueError, match=message):
        resolve(PretrainSettings(**fields))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--model.preset bass", "--model.preset: found 'bass', expected one of tiny, mini, small"),
        ("--optimizer.beta1 1", "optimizer.beta1 is 1.0; it must be at least 0 and below 1"),
        ("--optimizer.eps -1", "optimizer.eps is -1.0; it must be at least 0"),
        ("--checkpoint.keep -1", "checkpoint.keep is -1; it must be at least 0"),
        ("--validation.interval -1", "validation.interval is -1; it must be at least 0"),
        ("--model.overrides '{hiden_size: 3}'", "hiden_size is unknown; did you mean hidden_size?"),
        ("--model.overrides.hidden_size abc", "hidden_size is 'abc'; it must be a whole number"),
        ("--model.overrides.pre_norm 1", "pre_norm is 1; it must be true or false"),
        ("--model.overrides.hidden_dropout true", "hidden_dropout is True; it must be a number"),
    ],
)
def test_values_out_of_range_say_what_is_allowed(flags, message, capsys):
    assert main(["plan", *shlex.split(f"{TINY} {flags}")]) == 2
    assert message in capsys.readouterr().err


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
