"""Runs that go on from a checkpoint of another run, and means of a run's checkpoints."""

import json
import shutil

import pytest
import torch
import yaml

from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import TINY, launch, rows_of, write_config
from trainer.checkpoints.read import read_weights
from trainer.cli import main
from trainer.conversion.export import load_hf
from trainer.inference.open_model import open_model
from trainer.pretrain.run import Position, place_position
from trainer.settings import Phase, PretrainSettings, resolve

pytestmark = pytest.mark.engines

STABLE = {"seq_len": 16, "global_batch": 12, "steps": 8, "peak_lr": 0.02, "warmup_steps": 2}
STABLE |= {"decay_power": 0.0}
DECAY = STABLE | {"steps": 4, "warmup_steps": 0, "decay_power": 1.0}
MODEL = {"preset": "tiny", "overrides": TINY}
OURS = ["-m", "trainer"]


def command(data, output, phases, **changed):
    often = {"model": MODEL, "checkpoint": {"interval": 2, "keep": 0}, "seed": 11}
    return write_config(output, data, phases=phases, **often | changed)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_tiny_dataset(tmp_path_factory.mktemp("dataset"))


@pytest.fixture(scope="module")
def trunk(data, tmp_path_factory):
    """Eight steps at a constant rate, with a checkpoint after every second."""
    output = tmp_path_factory.mktemp("runs") / "trunk"
    launch(OURS, command(data, output, [STABLE]), 1)
    return output


def losses(run):
    return [(row["step"], row["loss"], row["learning_rate"]) for row in rows_of(run)]


def test_a_branch_is_the_run_that_had_its_schedule_from_the_start(data, trunk, tmp_path):
    """To the bit, dropout included. It goes on as any run."""
    phases = [STABLE | {"steps": 4}, DECAY]
    launch(OURS, command(data, tmp_path / "whole", phases), 1)
    branch = command(data, tmp_path / "branch", phases, continue_from=f"{trunk}@4")
    assert "branch: continuing after step 4" in launch(OURS, branch, 1)
    whole = losses(tmp_path / "whole")
    assert losses(tmp_path / "branch") == whole
    assert [rate for _, _, rate in whole[4:]] == pytest.approx([0.02, 0.015, 0.01, 0.005])
    last = [tmp_path / name / "checkpoints/step-00000008" for name in ("whole", "branch")]
    weights = [read_weights(each) for each in last]
    assert all(torch.equal(weights[0][name], each) for name, each in weights[1].items())
    states = [json.loads((each / "state.json").read_text()) for each in last]
    same = ("phase", "phase_step", "tokens", "instances", "streams", "num_updates", "guard")
    assert [states[0][key] for key in same] == [states[1][key] for key in same]
    runs = (tmp_path / "branch", trunk)
    facts, ours = (json.loads((run / "run.json").read_text()) for run in runs)
    told = {"run": str(trunk), "id": ours["id"], "step": 4}
    assert facts["trunk"] == {**told, "root_hashes": [ours["datasets"][0]["root_hash"]]}
    assert facts["id"] != ours["id"]
    assert "is finished, all 8 steps are made" in launch(OURS, branch, 1)
    for step in (6, 8):  # as if it was killed before it saved
        shutil.rmtree(tmp_path / f"branch/checkpoints/step-{step:08d}")
    assert "branch: continuing after step 4" in launch(OURS, branch, 1)
    assert losses(tmp_path / "branch") == whole
    assert main(["export", str(tmp_path / "branch"), "--output", str(tmp_path / "hf")]) == 0
    card = (tmp_path / "hf/README.md").read_text()
    assert "| went on from | trunk at step 4 |" in card
    assert f"| tokens seen | {states[1]['tokens']:,} |" in card


def test_a_share_of_masks_goes_on_along_the_trunks_line(data, tmp_path):
    """To the bit the run that has the trunk's line from the start, also where it goes on again."""
    often = {"masking": "0.4-0.15"}
    launch(OURS, command(data, tmp_path / "trunk", [STABLE], **often), 1)
    phases = [STABLE | {"steps": 4}, DECAY | {"steps": 6}]
    whole = command(data, tmp_path / "whole", phases, masking="0.4-0.15@8")
    launch(OURS, whole, 1)
    branch = command(
        data, tmp_path / "branch", phases, continue_from=f"{tmp_path / 'trunk'}@4", **often
    )
    launch(OURS, branch, 1)
    masked = [
        [(row["step"], row["loss"]) for row in rows_of(tmp_path / name)]
        for name in ("whole", "branch", "trunk")
    ]
    assert masked[1] == masked[0]
    assert masked[1][:4] == masked[2][:4]
    config = yaml.safe_load((tmp_path / "branch/config.yaml").read_text())
    assert config["masking"] == "0.4-0.15@8"
    assert "is finished, all 10 steps are made" in launch(OURS, branch, 1)
    twig = command(
        data, tmp_path / "twig", phases, continue_from=f"{tmp_path / 'branch'}@6", **often
    )
    launch(OURS, twig, 1)
    assert losses(tmp_path / "twig") == losses(tmp_path / "whole")
    for other in ("0.4-0.15@9", "0.4-0.2", "static"):
        run = command(
            data, tmp_path / "no", phases, continue_from=f"{tmp_path / 'trunk'}@4", masking=other
        )
        said = f"masking was '0.4-0.15@8' and is now '{other}'"
        assert said in launch(OURS, run, 1, expected=2)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seed": 12}, "with other settings: seed was 11 and is now 12. Give the settings"),
        ({"objective": "mlm"}, "objective was 'mlm+nsp' and is now 'mlm'"),
        ({"at": "@5"}, "has no checkpoint of step 5; it has [2, 4, 6, 8]"),
        ({"at": ""}, "the first 8 steps of phases have 96, and 0 follow"),  # the newest
        ({"batch": 13}, "with 48 instances; the first 4 steps of phases have 52, and 4 follow"),
        ({"other_data": True}, "root hash of data dataset"),
    ],
)
def test_what_contradicts_the_trunk_is_refused_and_nothing_is_begun(
    data, trunk, tmp_path, changed, said
):
    at, batch = changed.pop("at", "@4"), changed.pop("batch", 12)
    if changed.pop("other_data", False):
        data = write_tiny_dataset(tmp_path / "dataset", seed=1)
    phases = [STABLE | {"steps": 4, "global_batch": batch}, DECAY]
    run = command(data, tmp_path / "run", phases, continue_from=f"{trunk}{at}", **changed)
    assert said in launch(OURS, run, 1, expected=2)
    assert not (tmp_path / "run").exists()


def test_a_position_is_placed_among_other_phases():
    position = Position(step=10, instances=100, phase=3, phase_step=1)
    for second, placed in {6: (2, 0), 7: (1, 6)}.items():
        phases = [Phase(16, 10, 4, 0.1), Phase(32, 10, second, 0.1), Phase(16, 5, 1, 0.1)]
        found = place_position(position, phases)
        assert (found.step, found.phase, found.phase_step) == (10, *placed)


@pytest.mark.parametrize(("name", "value"), [("budget_hours", 1.0), ("init_from", "bert")])
def test_a_trunk_alone_says_weights_and_steps(name, value):
    other = {"continue_from": "trunk", name: value}
    run = PretrainSettings(["data"], "run", [Phase(16, 10, 4, 0.1)], **other)
    with pytest.raises(ValueError, match=f"takes a run's weights and steps; leave {name} out"):
        resolve(run)


def test_the_mean_of_checkpoints_is_exported_and_the_card_names_them(trunk, tmp_path, capsys):
    means = {f"{trunk}@mean3": (4, 6, 8), f"{trunk}@6@mean2": (4, 6)}
    for name, steps in means.items():
        folder = tmp_path / str(steps[-1])
        assert main(["export", name, "--output", str(folder)]) == 0
        read = [read_weights(trunk / f"checkpoints/step-{step:08d}") for step in steps]
        found = load_hf(str(folder))[1]
        for key, tensor in open_model(name).state.items():
            assert torch.equal(tensor, sum(each[key] for each in read) / len(steps))
            assert torch.equal(tensor, found[key])
        card = (folder / "README.md").read_text()
        assert f"| mean of steps | {', '.join(map(str, steps))} |" in card
        assert f"| steps | {steps[-1]} |" in card
    assert main(["export", f"{trunk}@mean5", "--output", str(tmp_path / "no")]) == 2
    said = "@mean5: 4 checkpoints are there; checkpoint.keep keeps more"
    assert said in capsys.readouterr().err
