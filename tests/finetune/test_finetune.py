"""The command on one rank and on two: grid, seeds, resuming, predictions, exports, refusals.

Run as a program, this file is one of the ranks: it fine-tunes what the tests below judge.
"""

import csv
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers

from tests.finetune.tiny_data import write_sst2
from tests.finetune.tiny_model import NO_DROPOUT, write_fine_tuned, write_pretrained
from tests.loaded_python import run_python
from tests.trainer.two_ranks import run_ranks
from trainer.cli import main as command
from trainer.finetune.batches import Recipe, iterate_steps
from trainer.finetune.prepare import begin_model, prepare_data
from trainer.finetune.run import finetune_on
from trainer.finetune.settings import ColumnSettings, FinetuneSettings
from trainer.finetune.training import train_task
from trainer.model.task_heads import Head
from trainer.process.ranks import start_ranks, stop_ranks

pytestmark = pytest.mark.engines

KEPT, SUBMITTED = ("results.json", "best/model.safetensors"), "predictions/test/SST-2.tsv"
LOSSES = Recipe(global_batch=6, peak_lr=2e-3, epochs=2, seed=3)
CHOICES = "startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n" + "".join(
    f'a,"the cat, {word}",the dog,gold,good,bad,ran .,sat,0\n'
    f"a,the film {word},a cat,gen,bad,ran,good,sat,2\n"
    for word in ("sat", "ran", "is bad", "very")
)
NUMBERS = "".join(
    json.dumps({"a": " ".join([word] * length), "b": "cat", "score": score}) + "\n"
    for word, score in (("good", 1.5), ("bad", 0)) for length in (1, 2, 3)
)  # fmt: skip


def settings_of(folder, output, **changes):
    files = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
    given = {name: [str(folder / file)] for name, file in files.items()}
    given |= {"model": str(folder / "model"), "output": str(output), "seq_len": 16}
    given |= {"search_global_batch": [8, 16], "search_peak_lr": [5e-3], "search_seeds": [0, 1]}
    return FinetuneSettings(**{"task": "sst2", "micro_tokens": 64, **given, **changes})


def main(folder, output):
    ranks = start_ranks()
    finetune_on(ranks, settings_of(folder, output / "grid"))
    missing = settings_of(folder, output / "missing", train=["none.tsv"])
    faults = {"missing": fault_of(ranks, missing)}
    if ranks.world_size == 1:
        alone(ranks, folder, output, faults)
    if ranks.rank == 0:
        (output / "faults.json").write_text(json.dumps(faults))
    stop_ranks()


def alone(ranks, folder, output, faults):
    """What needs no second rank."""
    resume(ranks, folder, output)
    for name in ("grown", "changed"):
        shutil.copytree(output / "grid", output / name)
    for name in ("longer", "grown"):
        grid = {"search_seeds": [0, 1, 5], "search_global_batch": [8]}
        finetune_on(ranks, settings_of(folder, output / name, **grid))
    changed = {"seq_len": 12, "warmup_fraction": 0.2}
    faults["changed"] = fault_of(ranks, settings_of(folder, output / "changed", **changed))
    (output / "foreign").mkdir()
    (output / "foreign" / "thesis.txt").write_text("mine")
    faults["foreign"] = fault_of(ranks, settings_of(folder, output / "foreign"))
    faults["positions"] = fault_of(ranks, settings_of(folder, output / "new", seq_len=41))
    once = {"search_global_batch": [4], "test": [], "search_epochs": [8], "search_seeds": [0]}
    swag, numbers = [str(folder / "swag.csv")], [str(folder / "numbers.jsonl")]
    choice = {"task": "swag", "train": swag, "validation": swag, **once}
    finetune_on(ranks, settings_of(folder, output / "swag", **choice))
    columns = ColumnSettings(text="a", text_b="b", label="score")
    regression = {"task": "regression", "train": numbers, "validation": numbers, **once}
    finetune_on(ranks, settings_of(folder, output / "numbers", columns=columns, **regression))
    head = {"model": str(output / "grid/best"), "search_seeds": [0], "search_global_batch": [16]}
    finetune_on(ranks, settings_of(folder, output / "goes-on", **head))
    other = settings_of(folder, output / "other", **{**head, "model": str(folder / "three-labels")})
    faults["other"] = fault_of(ranks, other)
    finetune_on(ranks, replace(other, replace_head=True))
    half = {"precision": "bf16", "search_global_batch": [8], "search_epochs": [6]}
    finetune_on(ranks, settings_of(folder, output / "bf16", **half))
    losses = {"fp32": losses_of(ranks, settings_of(folder, ""), LOSSES)}
    losses["bf16"] = losses_of(ranks, settings_of(folder, "", precision="bf16"), LOSSES)
    (output / "losses.json").write_text(json.dumps(losses))


def resume(ranks, folder, output):
    """As a command that was killed during its third run, with the model of the best one lost."""
    resumed = shutil.copytree(output / "grid", output / "resumed")
    for path in sorted(resumed.glob("runs/*"))[2:]:
        path.unlink()
    shutil.rmtree(resumed / "best")
    (resumed / "results.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in resumed.glob("runs/*")}
    finetune_on(ranks, settings_of(folder, resumed))
    kept = [path.name for path, written in before.items() if path.stat().st_mtime_ns == written]
    (output / "kept.json").write_text(json.dumps(kept))


def fault_of(ranks, settings):
    try:
        finetune_on(ranks, settings)
    except (ValueError, OSError) as fault:
        return str(fault)
    return None


def losses_of(ranks, settings, recipe):
    """Of every step of one fine-tuning."""
    prepared = prepare_data(settings)
    model = begin_model(prepared, recipe.seed)
    losses = []
    train_task(model, prepared.train_items, recipe, settings, ranks, losses.append)
    return losses


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finetune")
    write_sst2(folder)
    write_pretrained(folder / "model")
    write_fine_tuned(folder / "three-labels", Head("classification", ("x", "y", "z")), **NO_DROPOUT)
    (folder / "swag.csv").write_text(CHOICES)
    (folder / "numbers.jsonl").write_text(NUMBERS)
    return folder


def launch(folder, world_size):
    output = folder / f"on-{world_size}"
    output.mkdir()
    for process in run_ranks([__file__, str(folder), str(output)], world_size):
        assert process.returncode == 0, process.stderr
    return output


@pytest.fixture(scope="module")
def output(folder):
    return launch(folder, 1)


@pytest.fixture(scope="module")
def faults(output):
    return json.loads((output / "faults.json").read_text())


def results_of(path):
    return json.loads((path / "results.json").read_text())


def test_the_grid_is_trained_and_learns(output):
    results = results_of(output / "grid")
    assert [run["name"] for run in results["runs"]] == [
        "batch8-lr0.005-epochs3-seed0",
        "batch8-lr0.005-epochs3-seed1",
        "batch16-lr0.005-epochs3-seed0",
        "batch16-lr0.005-epochs3-seed1",
    ]
    assert [run["steps"] for run in results["runs"]] == [18, 18, 9, 9]
    assert results["best"]["metrics"]["dev"]["accuracy"] == 1.0  # one word decides
    assert results["data"]["train"][0]["examples"] == 48
    assert results["data"]["train"][0]["truncated_examples"] == 0
    first = results["settings"][0]
    values = [run["metrics"]["dev"]["accuracy"] for run in results["runs"][:2]]
    assert first["mean"]["dev"]["accuracy"] == pytest.approx(sum(values) / 2)
    deviation = abs(values[0] - values[1]) / 2**0.5
    assert first["standard_deviation"]["dev"]["accuracy"] == pytest.approx(deviation)


def test_the_best_model_opens_in_transformers_and_made_the_predictions(output, folder):
    best = output / "grid/best"
    tokenizer = transformers.AutoTokenizer.from_pretrained(best)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(best).eval()
    texts = [line.split("\t")[1] for line in (folder / "test.tsv").read_text().splitlines()[1:]]
    with torch.no_grad():
        logits = model(**tokenizer(texts, return_tensors="pt", padding=True)).logits
    rows = (output / "grid" / SUBMITTED).read_text().splitlines()
    labels = logits.argmax(1).tolist()
    assert rows == ["index\tprediction", *(f"{row}\t{label}" for row, label in enumerate(labels))]
    facts = json.loads((best / "config.json").read_text())["beambert"]
    name = results_of(output / "grid")["best"]["name"]
    assert (facts["tokens_seen"], facts["finetuned"]["run"]) == (99, name)


def same_files(first, second, *names):
    return all((first / name).read_bytes() == (second / name).read_bytes() for name in names)


def test_a_stopped_command_goes_on_and_gives_the_same_results(output):
    assert same_files(output / "resumed", output / "grid", *KEPT, SUBMITTED)
    # The best run's model was lost, so it was redone.
    assert len(json.loads((output / "kept.json").read_text())) == 1


def test_predict_writes_what_finetune_wrote(output, folder, tmp_path):
    best = output / "grid" / "best"
    predict = ["-m", "trainer", "predict", "--model", best, "--input", folder / "test.tsv"]
    flags = ["--output", tmp_path / "out", "--micro_tokens", 16, "--seq_len", 16]
    done = run_python([*predict, folder / "dev.tsv", *flags])
    assert done.returncode == 0, done.stderr
    assert "SST-2.tsv, 7 rows" in done.stdout
    assert same_files(tmp_path / "out", output / "grid", SUBMITTED)
    rows = (tmp_path / "out/predictions/dev/SST-2.tsv").read_text().splitlines()
    assert rows[0] == "index\tprediction"
    assert [row.split("\t")[0] for row in rows[1:]] == list(map(str, range(20)))


FEATURES = ["--task", "ner-features", "--tokens.feature_layers", "-1"]


@pytest.mark.parametrize(
    ("model", "flags", "message"),
    [
        ("three-labels", [], "does not say which task it was fine-tuned on; give --task"),
        (
            "three-labels",
            ["--task", "regression"],
            "classification with 3 labels: x, y, z, this task",
        ),
        ("model", ["--task", "sst2"], "has no head for a task; fine-tune it first"),
        ("three-labels", ["--task", "sst2", "--seq_len", "41"], "reads 40 tokens at most"),
        ("three-labels", FEATURES, "within finetune alone"),
    ],
)
def test_models_that_cannot_predict_are_refused(folder, tmp_path, capsys, model, flags, message):
    files = ["--model", folder / model, "--input", folder / "test.tsv"]
    columns, output = ["--columns.text", "sentence"], ["--output", tmp_path / "out"]
    assert command(["predict", *map(str, (*files, *columns, *output, *flags))]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_grid_may_grow(output):
    grown, at_once = results_of(output / "grown"), results_of(output / "longer")
    assert grown == at_once
    assert [run["seed"] for run in grown["runs"]] == [0, 1, 5]


def test_refusals(faults):
    assert "no such file" in faults["missing"].lower()
    assert "seq_len was 16 and is now 12" in faults["changed"]
    assert "warmup_fraction was 0.1 and is now 0.2" in faults["changed"]
    assert "exists and is not a fine-tuning, it has no runs; give another" in faults["foreign"]
    assert "seq_len is 41" in faults["positions"]
    assert "reads 40 tokens at most" in faults["positions"]
    assert "a head for classification with 3 labels: x, y, z, this task" in faults["other"]
    assert "--replace_head true" in faults["other"]


def test_multiple_choice_and_regression_learn(output):
    assert results_of(output / "swag")["best"]["metrics"]["swag"]["accuracy"] == 1.0
    # All are answered right: see the line above.
    labels = [row[-1] for row in csv.reader(CHOICES.splitlines())][1:]
    written = (output / "swag" / "predictions" / "swag" / "swag.csv").read_text()
    assert written == ",pred\n" + "".join(f"{row},{label}\n" for row, label in enumerate(labels))
    assert results_of(output / "numbers")["best"]["metrics"]["numbers"]["pearson"] > 0.9


def test_a_head_goes_on_where_it_fits(output):
    goes_on, new = (results_of(output / name)["runs"][0] for name in ("goes-on", "other"))
    assert goes_on["train_loss"] < 0.5 * new["train_loss"]


def test_two_ranks_give_what_one_gives(folder, output):
    both = launch(folder, 2)
    alone, together = results_of(output / "grid"), results_of(both / "grid")
    assert [run["metrics"] for run in together["runs"]] == [run["metrics"] for run in alone["runs"]]
    losses = [[run["train_loss"] for run in results["runs"]] for results in (together, alone)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert same_files(both / "grid", output / "grid", SUBMITTED)
    assert "none.tsv" in json.loads((both / "faults.json").read_text())["missing"]


def test_losses_are_those_of_a_loop_over_transformers(folder, output):
    settings = settings_of(folder, "")
    prepared = prepare_data(settings)
    ours = begin_model(prepared, LOSSES.seed)
    kind = transformers.BertForSequenceClassification
    theirs = kind.from_pretrained(folder / "model", num_labels=2).train()
    theirs.classifier.load_state_dict(ours.task_head.state_dict())
    decays = [parameter for parameter in theirs.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in theirs.parameters() if parameter.ndim == 1]
    groups = [{"params": decays, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LOSSES.peak_lr, eps=1e-6)
    steps = LOSSES.num_steps(len(prepared.train_items))
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, round(0.1 * steps), steps)
    losses = []
    for step in iterate_steps(prepared.train_items, LOSSES, world_size=1, micro_tokens=64):
        loss = theirs(**padded(step.items)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert len(losses) == 16
    found = json.loads((output / "losses.json").read_text())
    assert found["fp32"] == pytest.approx(losses, abs=1e-4)
    assert found["bf16"] != found["fp32"]
    assert found["bf16"] == pytest.approx(losses, abs=0.05)


def test_the_model_trained_in_bf16_is_kept_as_it_was_measured(output):
    weights = safetensors.torch.load_file(output / "bf16/best/model.safetensors").values()
    assert {weight.dtype for weight in weights} == {torch.float32}
    assert all((weight == weight.bfloat16().float()).all() for weight in weights)
    assert results_of(output / "bf16")["best"]["metrics"]["dev"]["accuracy"] == 1.0


def padded(items):
    width = max(len(item.sequences[0].input_ids) for item in items)
    ids, mask = torch.zeros(2, len(items), width, dtype=torch.long)
    for row, item in enumerate(items):
        found = torch.from_numpy(item.sequences[0].input_ids.astype("int64"))
        ids[row, : len(found)], mask[row, : len(found)] = found, 1
    labels = torch.tensor([int(item.labels[0]) for item in items])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
