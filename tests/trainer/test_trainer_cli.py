"""The command line without training: help, settings files, and one message for each mistake."""

import subprocess
import sys

import pytest
import yaml

from pipeline.command_line.program import parse_settings
from trainer.cli import COMMANDS, main
from trainer.runs.run_folder import to_yaml
from trainer.settings import OF_PHASES, Phase, PretrainSettings, resolve


def pretrain_settings(*arguments):
    return resolve(
        parse_settings(
            "trainer pretrain", COMMANDS["pretrain"], ["--data", "D", "--output", "R", *arguments]
        )
    )


@pytest.mark.processes
@pytest.mark.parametrize(
    "arguments", [["--help"], ["pretrain", "--help"], ["export", "--help"], ["fill-mask", "--help"]]
)
def test_help_is_quick_because_it_imports_no_torch(arguments):
    code = "import sys, trainer.cli\ntry:\n trainer.cli.main(sys.argv[1:])\nfinally:\n assert 'torch' not in sys.modules"
    finished = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert "usage: python -m trainer" in finished.stdout


@pytest.mark.parametrize(
    ("name", "seq_lens"), [("tiny", [32, 128]), ("base", [128, 512]), ("large", [128, 512])]
)
def test_configs_of_the_project_are_read(name, seq_lens):
    settings = pretrain_settings("--config", f"configs/pretrain/bert-{name}.yaml")
    assert [phase.seq_len for phase in settings.phases] == seq_lens


def test_published_recipe():
    first, second = pretrain_settings("--config", "configs/pretrain/bert-large.yaml").phases
    assert first.steps + second.steps == 1_000_000
    assert (first.seq_len, second.seq_len, first.global_batch, second.global_batch) == (
        128,
        512,
        256,
        256,
    )
    assert first.schedule.learning_rate(10_000) == pytest.approx(1e-4)
    assert (
        first.schedule.learning_rate(900_000)
        == pytest.approx(second.schedule.learning_rate(0))
        == 1e-5
    )
    assert second.schedule.learning_rate(100_000) == 0.0


def test_steps_replace_those_of_the_phases_and_the_warm_up_follows():
    settings = pretrain_settings(
        "--config", "configs/pretrain/bert-tiny.yaml", "--steps", "60", "9"
    )
    assert (settings.phases[0].steps, settings.phases[0].num_warmup_steps, settings.num_steps) == (
        60,
        3,
        69,
    )


@pytest.mark.parametrize(
    ("flags", "values"),
    [
        (["--peak_lr", "1e-3", "2e-4"], {"peak_lr": [1e-3, 2e-4]}),
        (["--peak_lr", "1e-3", "--end_lr", "0", "--global_batch", "16"], None),
        (
            ["--global_batch", "16", "8", "--steps", "40000"],
            {"global_batch": [16, 8], "steps": [40_000, 40_000]},
        ),
        (
            ["--steps", "40", "--warmup_steps", "7", "4"],
            {"num_warmup_steps": [7, 4], "warmup_fraction": [None, None]},
        ),
        (
            ["--steps", "40", "--warmup_fraction", "0.25"],
            {"num_warmup_steps": [10, 10], "warmup_steps": [None, None]},
        ),
    ],
)
def test_flags_for_all_phases_or_for_each(flags, values):
    arguments = ("--config", "configs/pretrain/bert-base.yaml", *flags)
    if values is None:
        with pytest.raises(
            ValueError, match=r"unknown flag --end_lr; did you mean --phases.end_lr\?"
        ):
            pretrain_settings(*arguments)
        return
    phases = pretrain_settings(*arguments).phases
    assert {name: [getattr(phase, name) for phase in phases] for name in values} == values


def test_what_is_given_for_phases_is_written_into_them_alone():
    settings = pretrain_settings(
        "--config", "configs/pretrain/bert-base.yaml", "--peak_lr", "3e-4", "--seed", "7"
    )
    assert "peak_lr: 0.0003" in to_yaml(settings)
    assert yaml.safe_load(to_yaml(settings)).keys().isdisjoint(OF_PHASES)


def test_the_dotted_form_is_for_every_phase():
    settings = pretrain_settings(
        "--config", "configs/pretrain/bert-base.yaml", "--phases.end_lr", "1e-6"
    )
    assert [phase.end_lr for phase in settings.phases] == [1e-6, 1e-6]


def test_doctor_takes_the_place_of_pretrain():
    words = [
        "--config",
        "configs/pretrain/bert-large.yaml",
        "--data",
        "s3://bucket/data",
        "--output",
        "/shared/run",
    ]
    settings = parse_settings("trainer doctor", COMMANDS["doctor"], [*words, "--peak_lr", "1e-4"])
    assert (settings.data, settings.output) == (["s3://bucket/data"], "/shared/run")
    assert parse_settings("trainer doctor", COMMANDS["doctor"], []).phases == []


def test_flags_win_over_files_wherever_they_stand():
    settings = pretrain_settings(
        "--seed", "7", "--config", "configs/pretrain/bert-base.yaml", "--precision", "fp32"
    )
    assert (settings.seed, settings.precision, settings.zero_stage) == (7, "fp32", 1)


PHASE = {"seq_len": 128, "global_batch": 8, "steps": 10, "peak_lr": 0.1}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": 0}, "steps of a phase is 0"),
        ({"global_batch": -1}, "global_batch of a phase is -1"),
        ({"warmup_steps": 11}, "warms up for 11 of its 10 steps"),
        ({"warmup_steps": 1, "warmup_fraction": 0.1}, "both warmup_fraction and warmup_steps"),
        ({"peak_lr": 0.0}, "peak_lr 0.0 must be above 0"),
        ({"end_lr": 0.2}, "end_lr 0.2 in 0 to peak_lr"),
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
        ({"skip": ["0:9-9"]}, "skip: '0:9-9' is not PHASE:START-STOP with a phase below 1"),
        ({"skip": ["1:3-9"]}, "skip: '1:3-9' is not PHASE:START-STOP with a phase below 1"),
        ({"skip": ["3-9"]}, "skip: '3-9' is not"),
        ({"micro_tokens": 100}, "micro_tokens 100 cannot hold one instance of 128 tokens"),
    ],
)
def test_settings_that_make_no_sense(changed, message):
    fields = {"data": ["D"], "output": "R", "phases": [Phase(**PHASE)], **changed}
    with pytest.raises(ValueError, match=message):
        resolve(PretrainSettings(**fields))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--model.preset", "bass"],
            "--model.preset: found 'bass', expected one of tiny, mini, small, medium, base, large",
        ),
        (["--optimizer.beta1", "1"], "optimizer.beta1 is 1.0; it must be at least 0 and below 1"),
        (["--optimizer.eps", "-1"], "optimizer.eps is -1.0; it must be at least 0"),
        (["--checkpoint.keep", "-1"], "checkpoint.keep is -1; it must be at least 0"),
        (["--validation.interval", "-1"], "validation.interval is -1; it must be at least 0"),
        (
            ["--model.overrides", "{hiden_size: 3}"],
            "model setting hiden_size is unknown; did you mean hidden_size?",
        ),
        (
            ["--model.overrides.hidden_size", "abc"],
            "model setting hidden_size is 'abc'; it must be a whole number",
        ),
        (
            ["--model.overrides.pre_norm", "1"],
            "model setting pre_norm is 1; it must be true or false",
        ),
        (
            ["--model.overrides.hidden_dropout", "true"],
            "model setting hidden_dropout is True; it must be a number",
        ),
    ],
)
def test_values_out_of_range_say_what_is_allowed(flags, message, capsys):
    assert main(["plan", "--config", "configs/pretrain/bert-tiny.yaml", *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_misspelled_key_is_named_with_its_line(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text(
        "phases: [{seq_len: 128, global_batch: 8, steps: 1, peak_lr: 0.1}]\nmicro_token: 5\n"
    )
    assert main(["pretrain", "--config", str(path), "--data", "D", "--output", "R"]) == 2
    printed = capsys.readouterr().err
    assert printed == (
        f"python -m trainer pretrain: error: {path}:2: unknown key micro_token; did you mean micro_tokens?\n"
    )
