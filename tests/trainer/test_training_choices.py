"""Whole runs with another objective, ZeRO-3, starting weights or an accuracy to stop at."""

import json
import shutil

import pytest
import torch

from pipeline.shards.growing import WaitPolicy
from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import OURS, SIZES, launch, meeting, rows_of, write_config
from tokenizer.word_rule import UNCASED
from trainer.checkpoints.files import find_checkpoints
from trainer.checkpoints.read import read_weights
from trainer.cli import main
from trainer.conversion.export import export_hf, load_hf
from trainer.model.bert import build_model
from trainer.model.config import preset
from trainer.pretrain.validation import load_validation_sets
from trainer.settings import PretrainSettings, ValidationSettings
from trainer.stream.order.source import open_mixture

pytestmark = pytest.mark.engines

CONFIG = preset("tiny", vocab_size=60, **SIZES)
DYING = meeting("kill", 5)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_tiny_dataset(tmp_path_factory.mktemp("dataset"), seq_lens=(16,))


def command(data, output, **changes):
    phase = {"seq_len": 16, "global_batch": 12, "steps": 6, "peak_lr": 0.02, "warmup_steps": 1}
    often = {"validation": {"interval": 2}, "checkpoint": {"interval": 2}}
    return write_config(output, data, **{"phases": [phase], **often, "seed": 11, **changes})


def test_masked_lm_alone_keeps_the_other_head_through_zero_3_and_a_kill(data, tmp_path, capsys):
    """Two ranks under ZeRO-3, killed, continued by one under ZeRO-1; equal to one calm run.

    Masks are drawn anew, the same by one rank and two.
    """
    chosen = {"objective": "mlm", "masking": "0.4-0.2"}
    launch(OURS, command(data, tmp_path / "calm", **chosen), 1)
    rough = command(data, tmp_path / "rough", **chosen, zero_stage=3)
    launch(DYING, rough, 2, expected=9)
    said = launch(OURS, [*rough, "--zero_stage", "1", "--activation_checkpointing", "true"], 1)
    assert "continuing after step 4" in said
    losses = [[row["loss"] for row in rows_of(tmp_path / name)] for name in ("calm", "rough")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for row in rows_of(tmp_path / "calm"):
        assert row["loss"] == row["mlm_loss"] and "nsp_loss" not in row  # noqa: PT018
    assert all("nsp_accuracy" not in row for row in rows_of(tmp_path / "calm", "validation"))
    assert json.loads((tmp_path / "calm/run.json").read_text())["masking"] == "0.4-0.2"
    initial = build_model(CONFIG, seed=11).state_dict()
    for name in ("calm", "rough"):
        weights = read_weights(find_checkpoints(tmp_path / name / "checkpoints")[0][-1])
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
    for row in rows[1:]:
        assert 0 < row["trust_ratio_min"] <= row["trust_ratio_median"] <= row["trust_ratio_max"]
    [validation] = rows_of(tmp_path / "run", "validation")[-1:]
    assert validation["masked"] > 8 * validation["instances"]  # every token but the last of each
    config = json.loads((tmp_path / "run" / "run.json").read_text())["model"]
    assert config["is_causal"] is True


def test_a_run_starts_from_an_export_once(data, tmp_path):
    state = build_model(CONFIG, seed=5).state_dict()
    vocab = (data / "vocab.txt").read_bytes()
    export_hf(state, CONFIG, vocab, str(tmp_path / "start"), rule=UNCASED, provenance={})
    run = command(data, tmp_path / "run", init_from=str(tmp_path / "start"))
    said = launch(DYING, run, 1, expected=9)
    assert f"weights are those of {tmp_path / 'start'}" in said
    base = json.loads((tmp_path / "run/run.json").read_text())["base_model"]
    assert (base["name"], "provenance" in base) == ("start", False)
    shutil.rmtree(tmp_path / "start")  # read once
    assert "continuing after step 4" in launch(OURS, run, 1)


@pytest.mark.parametrize(
    ("seq_len", "num_instances", "refusal"),
    [
        (16, 61, "holds out 60 instances of 16 tokens, validation.num_instances is 61"),
        (32, 60, "no dataset holds out instances of 32 tokens"),
    ],
)
def test_an_accuracy_that_nothing_measures_is_refused(data, ranks, seq_len, num_instances, refusal):
    target = ValidationSettings(num_instances=num_instances, stop_at_mlm_accuracy=0.5)
    settings = PretrainSettings(data=[], output="", phases=[], validation=target)
    mixture = open_mixture([str(data)])
    with pytest.raises(ValueError, match=refusal):
        load_validation_sets(mixture, seq_len, settings, ranks, WaitPolicy(), print)


def test_a_run_is_finished_at_its_accuracy(data, tmp_path):
    target = {"interval": 2, "num_instances": 60, "stop_at_mlm_accuracy": 1e-6}
    launch(OURS, command(data, tmp_path / "run", validation=target), 1)
    assert len(rows_of(tmp_path / "run")) == 2
