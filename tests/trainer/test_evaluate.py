"""`evaluate`: the numbers of a run's own validation, and of transformers."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
import transformers

from pipeline.shards.dataset import open_dataset
from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import rows_of, train_tiny_run
from trainer.cli import main
from trainer.inference.evaluate import choose_lengths, evaluate, perplexity
from trainer.inference.open_model import open_model
from trainer.stream.batches.pack import pad_micro_batch
from trainer.stream.held_out import iterate_validation

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("evaluate")
    write_tiny_dataset(path / "data", seq_lens=(16, 32))
    write_tiny_dataset(path / "other", vocab_size=70)
    write_tiny_dataset(path / "long", seq_lens=(64,))
    train_tiny_run(path / "data", path / "run")
    train_tiny_run(path / "data", path / "ltr", objective="left-to-right")
    assert main(["export", str(path / "run"), "--output", str(path / "hf")]) == 0
    return path


def run(folder, *flags):
    files = ["--model", str(folder / "run"), "--data", str(folder / "data")]
    return main(["evaluate", *files, *flags])


def measure(folder, model, split="validation"):
    return evaluate(open_model(str(folder / model)), open_dataset(str(folder / "data")), split, 16)


@pytest.mark.parametrize(("run", "has_nsp"), [("run", True), ("ltr", False)])
def test_numbers_are_those_of_the_validation_inside_the_run(folder, run, has_nsp):
    expected = rows_of(folder / run, "validation")[-1]
    found = measure(folder, run)
    assert ("nsp_accuracy" in found) == ("nsp_majority_share" in found) == has_nsp
    compared = ["mlm_loss", "mlm_accuracy", "unigram_entropy", "instances", "masked"]
    compared += ["loss", "nsp_loss", "nsp_accuracy", "nsp_majority_share"] if has_nsp else []
    theirs = {name: expected[name] for name in compared}
    assert {name: found[name] for name in compared} == pytest.approx(theirs, rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(expected["mlm_loss"]), rel=1e-5)


@pytest.mark.parametrize("factor", [1e6, math.inf])
def test_a_diverged_model_is_measured_too(folder, monkeypatch, capsys, factor):
    opened = open_model(str(folder / "run"))
    scaled = {
        name: tensor * factor if name.startswith("mlm_head.") else tensor
        for name, tensor in opened.state.items()
    }
    diverged = dataclasses.replace(opened, state=scaled)
    monkeypatch.setattr("trainer.inference.open_model.open_model", lambda *_: diverged)
    assert run(folder, "--seq_len", "16", "--output", str(folder / "diverged.json")) == 0
    [found] = json.loads((folder / "diverged.json").read_text())["lengths"]
    assert found["perplexity"] is None
    assert found["mlm_loss"] is None if factor == math.inf else found["mlm_loss"] > 709
    assert ", perplexity none (the model has diverged), accuracy 0." in capsys.readouterr().out


def test_the_perplexity_is_the_exponential_as_far_as_floats_hold_it():
    assert perplexity(0.0) == 1.0
    assert perplexity(709.7) == pytest.approx(1.6549840276802644e308)
    for loss in (709.8, 1e9, math.inf, math.nan):
        assert perplexity(loss) is None


def test_an_export_on_training_instances_is_as_transformers_says(folder):
    theirs = transformers.BertForPreTraining.from_pretrained(folder / "hf").eval()
    losses, hits, judged, random = [], [], [], []
    whole = {"rank": 0, "world_size": 1, "micro_tokens": 512, "split": "train"}
    for batch in iterate_validation(open_dataset(str(folder / "data")), 16, **whole):
        rows = pad_micro_batch(batch, 16)
        names = ("input_ids", "attention_mask", "token_type_ids")
        with torch.no_grad():
            out = theirs(**{name: rows[name] for name in names})
        chosen, following = rows["labels"] != -100, rows["next_sentence_label"]
        logits, labels = out.prediction_logits[chosen], rows["labels"][chosen]
        losses += torch.nn.functional.cross_entropy(logits, labels, reduction="none").tolist()
        hits += (logits.argmax(-1) == labels).tolist()
        random += following.tolist()
        judged += (out.seq_relationship_logits.argmax(-1) == following).tolist()
    found = measure(folder, "hf", "train")
    assert found["mlm_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert found["mlm_accuracy"] == pytest.approx(np.mean(hits), abs=1e-9)
    assert found["nsp_accuracy"] == pytest.approx(np.mean(judged), abs=1e-9)
    assert found["nsp_majority_share"] == max(np.mean(random), 1 - np.mean(random))
    assert (found["masked"], found["instances"]) == (len(losses), len(judged))


def test_the_command_prints_numbers_and_writes_the_same_as_json(folder, capsys):
    assert run(folder, "--num_instances", "20", "--output", str(folder / "found.json")) == 0
    printed = capsys.readouterr().out
    found = json.loads((folder / "found.json").read_text())
    assert found["split"] == "validation"
    first, second = found["lengths"]
    counted = [(each["instances"], each["seq_len"]) for each in (first, second)]
    assert counted == [(20, 16), (20, 32)]
    assert f"MLM loss {first['mlm_loss']:.4f} nats" in printed
    assert "20 instances, 40 masked tokens" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split", "train", "--seq_len", "99"], "99"),
        (["--data", "other"], "has another vocabulary (70 tokens) than"),
        (["--data", "long"], "instances of 64 tokens, and"),
        (["--num_instances", "-1"], "num_instances is -1; it must be at least 0"),
    ],
)
def test_what_does_not_fit_is_refused(folder, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(folder, *arguments) == 2
    assert message in capsys.readouterr().err


def test_lengths_that_the_model_does_not_read_are_left_out(folder, tmp_path):
    write_tiny_dataset(tmp_path, seq_lens=(16, 64))
    opened, dataset = open_model(str(folder / "run")), open_dataset(str(tmp_path))
    assert choose_lengths(opened, dataset, "validation", None) == [16]
    assert choose_lengths(opened, dataset, "validation", 64) == [64]
