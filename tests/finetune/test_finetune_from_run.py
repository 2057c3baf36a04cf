"""Fine-tuning from the folder of a pretraining run, newest checkpoint and named one, and in bf16.

Run as a program, this file is the one rank that fine-tunes what the tests below judge.
"""

import json
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.finetune.test_finetune import losses_of, results_of, settings_of
from tests.finetune.tiny_data import write_sst2
from tests.finetune.tiny_model import write_pretrained
from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import train_tiny_run
from tests.trainer.two_ranks import run_ranks
from trainer.cli import main as command
from trainer.finetune.batches import Recipe
from trainer.finetune.run import finetune_on
from trainer.process.ranks import start_ranks, stop_ranks

pytestmark = pytest.mark.engines

STARTS = {"newest": "run", "step-2": "run@2"}
RECIPE = Recipe(global_batch=8, peak_lr=5e-3, epochs=6, seed=1)


def write_texts(path, num_rows, seed):
    """Texts of the tiny dataset's words, 1 where most of them are w7 and 0 where most are w8."""
    draw = random.Random(seed)
    rows = [draw.randrange(2) for _ in range(num_rows)]
    texts = [
        " ".join(draw.choices(("w7", "w8", "w9"), (1 + 6 * row, 7 - 6 * row, 2), k=6))
        for row in rows
    ]
    path.write_text(
        "sentence\tlabel\n"
        + "".join(f"{text}\t{row}\n" for text, row in zip(texts, rows, strict=True))
    )


def from_run(folder, model, output):
    once = {"search_global_batch": [8], "search_seeds": [0], "search_epochs": [2], "test": []}
    return replace(settings_of(folder, folder / output, **once), model=str(folder / model))


def main(folder):
    torch.set_num_threads(1)  # bf16 sums depend on their number
    ranks = start_ranks()
    for name, run in STARTS.items():
        finetune_on(ranks, from_run(folder / "texts", f"../{run}", name))
        finetune_on(ranks, from_run(folder / "texts", f"../hf-{name}", f"exported-{name}"))
    losses = {}
    for precision in ("fp32", "bf16"):
        grid = {
            "search_global_batch": [8],
            "search_epochs": [6],
            "search_seeds": [1, 2],
            "precision": precision,
        }
        settings = settings_of(folder / "sst2", folder / "sst2" / precision, **grid)
        finetune_on(ranks, settings)
        losses[precision] = losses_of(ranks, settings, RECIPE)
    (folder / "losses.json").write_text(json.dumps(losses))
    stop_ranks()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("from-run")
    train_tiny_run(write_tiny_dataset(folder / "data"), folder / "run")
    for name, run in STARTS.items():
        assert command(["export", str(folder / run), "--output", str(folder / f"hf-{name}")]) == 0
    (folder / "texts").mkdir()
    write_texts(folder / "texts/train.tsv", 40, seed=0)
    write_texts(folder / "texts/dev.tsv", 24, seed=1)
    write_sst2(folder / "sst2")
    write_pretrained(folder / "sst2/model")
    [process] = run_ranks([__file__, str(folder)], 1)
    assert process.returncode == 0, process.stderr
    return folder


@pytest.mark.parametrize("name", STARTS)
def test_a_run_gives_what_its_export_gives(folder, name):
    ours, exported = folder / "texts" / name, folder / "texts" / f"exported-{name}"
    results = [results_of(path) for path in (ours, exported)]
    assert [result.pop("model") for result in results] == [
        str(folder / "texts" / ".." / STARTS[name]),
        str(folder / "texts" / ".." / f"hf-{name}"),
    ]
    assert results[0] == results[1]
    for file in ("best/model.safetensors", "best/vocab.txt", "best/tokenizer.json"):
        assert (ours / file).read_bytes() == (exported / file).read_bytes()


def test_the_step_that_is_named_is_taken(folder):
    losses = [results_of(folder / "texts" / name)["runs"][0]["train_loss"] for name in STARTS]
    assert losses[0] != losses[1]
    provenance = [
        json.loads((folder / "texts" / name / "best/config.json").read_text())["beambert"]["steps"]
        for name in STARTS
    ]
    assert provenance == [4, 2]


def test_bf16_trains_as_fp32_does(folder):
    losses = json.loads((folder / "losses.json").read_text())
    assert losses["bf16"] != losses["fp32"]
    assert losses["bf16"][0] == pytest.approx(losses["fp32"][0], rel=0.01)
    ends = {name: sum(each[-6:]) / 6 for name, each in losses.items()}
    assert ends["bf16"] == pytest.approx(ends["fp32"], abs=0.02)
    assert ends["bf16"] < 0.2 * losses["bf16"][0]


def test_the_model_trained_in_bf16_is_kept_as_it_was_measured(folder):
    weights = safetensors.torch.load_file(folder / "sst2/bf16/best/model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert all((weight == weight.bfloat16().float()).all() for weight in weights.values())
    assert results_of(folder / "sst2/bf16")["best"]["metrics"]["dev"]["accuracy"] == 1.0


if __name__ == "__main__":
    main(Path(sys.argv[1]))
