"""Whole runs with another objective, ZeRO-3, starting weights, a time budget or an accuracy to stop at.

Run as a program, this file is one rank that is killed: `test_training_choices.py STEP pretrain
...`.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import SIZES, launch, rows_of, write_config
from trainer.checkpoints.read import newest_checkpoint, read_weights
from trainer.cli import main
from trainer.conversion.export import export_hf, load_hf
from trainer.model.bert import build_model
from trainer.model.config import preset

pytestmark = pytest.mark.engines

CONFIG = preset("tiny", vocab_size=60, **SIZES)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_tiny_dataset(tmp_path_factory.mktemp("dataset"), seq_lens=(16,))


def command(data, output, **changes):
    phase = {"seq_len": 16, "global_batch": 12, "steps": 6, "peak_lr": 0.02, "warmup_steps": 1}
    often = {"validation": {"interval": 2}, "checkpoint": {"interval": 2}}
    return write_config(output, data, **{"phases": [phase], **often, "seed": 11, **changes})


def die_after(step):
    import trainer.pretrain.loop

    log_step = trainer.pretrain.loop._log_step

    def log_and_die(run, *arguments):
        log_step(run, *arguments)
        if run.position.step == step:
            run.saver.finish()
            os._exit(9)

    trainer.pretrain.loop._log_step = log_and_die


OURS, DYING = ["-m", "trainer"], [__file__, "5"]


def test_masked_lm_alone_keeps_the_other_head_through_zero_3_and_an_accident(
    data, tmp_path, capsys
):
    """Two ranks under ZeRO-3, killed, continued by one under ZeRO-1 with layers recomputed; equal to one calm run."""
    calm = command(data, tmp_path / "calm", objective="mlm")
    launch(OURS, calm, 1)
    rough = command(data, tmp_path / "rough", objective="mlm", zero_stage=3)
    launch(DYING, rough, 2, expected=9)
    said = launch(OURS, [*rough, "--zero_stage", "1", "--activation_checkpointing", "true"], 1)
    assert "continuing after step 4" in said
    losses = [[row["loss"] for row in rows_of(tmp_path / name)] for name in ("calm", "rough")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert all(
        row["loss"] == row["mlm_loss"] and "nsp_loss" not in row
        for row in rows_of(tmp_path / "calm")
    )
    assert all("nsp_accuracy" not in row for row in rows_of(tmp_path / "calm", "validation"))
    initial = build_model(CONFIG, seed=11).state_dict()
    for name in ("calm", "rough"):
        weights = read_weights(newest_checkpoint(tmp_path / name / "checkpoints"))
        assert weights.keys() == initial.keys()
        assert torch.equal(weights["nsp_head.weight"], initial["nsp_head.weight"])
        assert torch.equal(weights["bert.pooler.weight"], initial["bert.pooler.weight"])
        assert not torch.equal(weights["mlm_head.bias"], initial["mlm_head.bias"])
    assert main(["export", str(tmp_path / "rough"), "--output", str(tmp_path / "hf")]) == 0
    assert torch.equal(load_hf(str(tmp_path / "hf"))[1]["mlm_head.bias"], weights["mlm_head.bias"])


def test_left_to_right_predicts_every_token_with_lamb_and_its_trust_ratios(data, tmp_path):
    chosen = {"objective": "left-to-right", "optimizer": {"name": "lamb"}, "zero_stage": 2}
    launch(OURS, command(data, tmp_path / "run", **chosen), 2)
    rows = rows_of(tmp_path / "run")
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert all(
        0 < row["trust_ratio_min"] <= row["trust_ratio_median"] <= row["trust_ratio_max"]
        for row in rows[1:]
    )
    [validation] = rows_of(tmp_path / "run", "validation")[-1:]
    assert validation["masked"] > 8 * validation["instances"]  # every token but the last of each
    config = json.loads((tmp_path / "run" / "run.json").read_text())["model"]
    assert config["is_causal"] is True


def test_a_run_starts_from_an_export_and_refuses_another_start_later(data, tmp_path):
    state = build_model(CONFIG, seed=5).state_dict()
    vocab = (Path(data) / "vocab.txt").read_bytes()
    export_hf(state, CONFIG, vocab, str(tmp_path / "start"), lower_case=True, provenance={})
    run = command(data, tmp_path / "run", init_from=str(tmp_path / "start"))
    said = launch(DYING, run, 1, expected=9)
    assert f"weights are those of {tmp_path / 'start'}" in said
    base = json.loads((tmp_path / "run/run.json").read_text())["base_model"]
    assert base["name"] == "start"
    assert "provenance" not in base
    shutil.rmtree(tmp_path / "start")  # read once
    assert "continuing after step 4" in launch(OURS, run, 1)
    refused = launch(OURS, [*run, "--init_from", "elsewhere"], 1, expected=2)
    assert "init_from was" in refused
    fresh = command(data, tmp_path / "fresh")
    launch(OURS, [*fresh, "--steps", "1"], 1)
    first = [rows_of(tmp_path / name)[0]["loss"] for name in ("run", "fresh")]
    assert first[0] != first[1]


def test_a_budget_ends_phases_by_time_and_goes_on_after_an_accident(data, tmp_path):
    phase = {
        "seq_len": 16,
        "global_batch": 12,
        "steps": 20,
        "peak_lr": 0.02,
        "warmup_fraction": 0.1,
    }
    chosen = {
        "budget_hours": 4 / 3600,
        "phases": [phase, phase | {"steps": 60}],
        "checkpoint": {"interval": 1},
    }
    run = command(data, tmp_path / "run", **chosen)
    launch([__file__, "3"], run, 2, expected=9)
    launch(OURS, run, 2)
    rows = rows_of(tmp_path / "run")
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    for index, seconds in enumerate((1.0, 3.0)):
        of_phase = [row for row in rows if row["phase"] == index]
        shares = [row["phase_seconds"] / seconds for row in of_phase]
        assert shares == sorted(shares)
        assert shares[-1] >= 1.0
        assert all(share < 1.0 for share in shares[:-1])
        expected = [0.02 * min(share / 0.1, (1 - min(share, 1)) / 0.9) for share in shares]
        assert [row["learning_rate"] for row in of_phase] == pytest.approx(
            expected, rel=1e-6, abs=1e-12
        )


def test_a_run_is_finished_at_its_accuracy(data, tmp_path):
    run = command(
        data,
        tmp_path / "run",
        validation={"interval": 2, "num_instances": 60, "stop_at_mlm_accuracy": 1e-6},
    )
    launch(OURS, run, 1)
    assert len(rows_of(tmp_path / "run")) == 2
    assert (
        "this run is finished, all 2 steps are made; to train on, `python -m trainer export"
        in launch(OURS, run, 1)
    )
    more = {"interval": 2, "num_instances": 61, "stop_at_mlm_accuracy": 0.5}
    refused = launch(OURS, command(data, tmp_path / "other", validation=more), 1, expected=2)
    assert "holds out 60 instances of 16 tokens, validation.num_instances is 61" in refused


if __name__ == "__main__":
    die_after(int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
