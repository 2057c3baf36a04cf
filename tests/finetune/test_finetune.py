"""Fine-tuning on one rank: grid, seeds, resuming, predictions, exports, refusals."""

import dataclasses
import json
import shutil
from collections import Counter
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
import transformers

from tests.finetune.test_task_heads import padded
from tests.finetune.tiny_model import NO_DROPOUT, write_fine_tuned, write_pretrained, write_sst2
from tests.loaded_python import run_python
from trainer.cli import main as command
from trainer.finetune import run
from trainer.finetune.batches import Recipe, iterate_steps
from trainer.finetune.prepare import begin_model, prepare_data
from trainer.finetune.settings import ColumnSettings, FinetuneSettings, PredictSettings
from trainer.finetune.training import train_task
from trainer.model.task_heads import Head
from trainer.process.precision import Device

pytestmark = pytest.mark.engines

H200 = Device("H200", has_bf16=True, can_compile=True)
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
SCORED_PAIRS = ColumnSettings(text="a", text_b="b", label="score")
FEATURES = ["--task", "ner-features", "--tokens.feature_layers", "-1"]


def settings_of(folder, output, model="model", **changes):
    files = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
    given = {name: [str(folder / file)] for name, file in files.items()}
    given |= {"model": str(folder / model), "output": str(folder / output), "seq_len": 16}
    given |= {"search_global_batch": [8, 16], "search_peak_lr": [5e-3], "search_seeds": [0, 1]}
    return FinetuneSettings(**{"task": "sst2", "micro_tokens": 64, **given, **changes})


def losses_of(ranks, settings):
    """Of every step of one fine-tuning."""
    settings = dataclasses.replace(settings, precision=settings.precision or "fp32")
    prepared, losses = prepare_data(settings), []
    model = begin_model(prepared, LOSSES.seed)
    train_task(model, prepared.train_items, LOSSES, settings, ranks, losses.append)
    return losses


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finetune")
    write_sst2(folder)
    write_pretrained(folder / "model")
    write_fine_tuned(folder / "three-labels", Head("classification", ("x", "y", "z")), **NO_DROPOUT)
    return folder


@pytest.fixture(scope="module")
def finetune(folder, ranks):
    """finetune(output, **settings): the output's folder."""

    def finetune(output, **changes):
        run.finetune_on(ranks, settings_of(folder, output, **changes))
        return folder / output

    return finetune


@pytest.fixture(scope="module")
def grid(finetune):
    return finetune("grid")


def results_of(path):
    return json.loads((path / "results.json").read_text())


def test_the_grid_is_trained_and_learns(grid):
    results = results_of(grid)
    places = [f"batch{batch}-lr0.005-epochs3-seed{seed}" for batch in (8, 16) for seed in (0, 1)]
    assert [each["name"] for each in results["runs"]] == places
    assert [each["steps"] for each in results["runs"]] == [18, 18, 9, 9]
    assert results["best"]["metrics"]["dev"]["accuracy"] == 1.0  # one word decides
    assert results["data"]["train"][0]["examples"] == 48
    assert results["data"]["train"][0]["truncated_examples"] == 0
    first = results["settings"][0]
    values = [each["metrics"]["dev"]["accuracy"] for each in results["runs"][:2]]
    assert first["mean"]["dev"]["accuracy"] == pytest.approx(sum(values) / 2)
    deviation = abs(values[0] - values[1]) / 2**0.5
    assert first["standard_deviation"]["dev"]["accuracy"] == pytest.approx(deviation)


def test_a_run_that_diverges_ends_the_command_and_keeps_finished_runs(finetune, folder):
    chosen = {"search_global_batch": [8], "search_seeds": [0], "search_epochs": [1]}
    says = "batch8-lr1e\\+30-epochs1-seed0: the loss of step . of 6 is (nan|inf)"
    with pytest.raises(ValueError, match=f"{says}; give a --search_peak_lr below 1e\\+30"):
        finetune("diverged", search_peak_lr=[5e-3, 1e30], **chosen)
    assert [each.stem for each in (folder / "diverged/runs").iterdir()] == [
        "batch8-lr0.005-epochs1-seed0"
    ]
    assert not (folder / "diverged/results.json").exists()


def test_the_best_model_opens_in_transformers_and_made_the_predictions(grid, folder):
    best = grid / "best"
    tokenizer = transformers.AutoTokenizer.from_pretrained(best)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(best).eval()
    texts = [line.split("\t")[1] for line in (folder / "test.tsv").read_text().splitlines()[1:]]
    with torch.no_grad():
        logits = model(**tokenizer(texts, return_tensors="pt", padding=True)).logits
    rows = (grid / SUBMITTED).read_text().splitlines()
    labels = logits.argmax(1).tolist()
    assert rows == ["index\tprediction", *(f"{row}\t{label}" for row, label in enumerate(labels))]
    facts = json.loads((best / "config.json").read_text())["beambert"]
    assert facts["tokens_seen"] == 99
    assert facts["finetuned"]["run"] == results_of(grid)["best"]["name"]


def test_people_are_told_how_many_examples_of_each_class_there_are(folder):
    notes = prepare_data(settings_of(folder, "unused")).notes
    rows = (folder / "train.tsv").read_text().splitlines()[1:]
    labels = sorted(Counter(row[-1] for row in rows).items(), key=lambda pair: (-pair[1], pair[0]))
    shown = ", ".join(f"{name} {count}" for name, count in labels)
    assert f"{folder}/train.tsv: 48 examples; labels {shown}" in notes


def same_files(first, second, *names):
    return all((first / name).read_bytes() == (second / name).read_bytes() for name in names)


def test_a_stopped_command_goes_on_and_gives_the_same_results(grid, folder, finetune):
    """As one that was killed during its third run, with the model of the best one lost."""
    resumed = shutil.copytree(grid, folder / "resumed")
    first, second, *others = sorted(resumed.glob("runs/*"))
    for path in (*others, resumed / "results.json"):
        path.unlink()
    shutil.rmtree(resumed / "best")
    before = [path.stat().st_mtime_ns for path in (first, second)]
    finetune("resumed")
    assert same_files(resumed, grid, *KEPT, SUBMITTED)
    pairs = zip((first, second), before, strict=True)
    redone = [path.stat().st_mtime_ns > written for path, written in pairs]
    assert sorted(redone) == [False, True], "the best run's model was lost"


def test_predict_writes_what_finetune_wrote(grid, folder, tmp_path):
    predict = ["-m", "trainer", "predict", "--model", grid / "best", "--input", folder / "test.tsv"]
    flags = ["--output", tmp_path / "out", "--micro_tokens", 16, "--seq_len", 16]
    done = run_python([*predict, folder / "dev.tsv", *flags])
    assert done.returncode == 0, done.stderr
    assert "SST-2.tsv, 7 rows" in done.stdout
    assert same_files(tmp_path / "out", grid, SUBMITTED)
    rows = (tmp_path / "out/predictions/dev/SST-2.tsv").read_text().splitlines()
    assert rows[0] == "index\tprediction"
    assert [row.split("\t")[0] for row in rows[1:]] == list(map(str, range(20)))


def test_one_process_fine_tunes_twice(folder):
    """The second job's engine has process groups of its own."""
    own = {"search_global_batch": [16], "search_seeds": [0]}
    jobs = [settings_of(folder, name, **own) for name in ("once", "twice")]
    code = "from trainer.finetune.settings import *\nfrom trainer.finetune.run import finetune\n"
    done = run_python(["-c", f"{code}for job in {jobs}:\n    finetune(job)"])
    assert done.returncode == 0, done.stderr
    assert results_of(folder / "once")["runs"] == results_of(folder / "twice")["runs"]


@pytest.mark.parametrize(
    ("model", "flags", "message"),
    [
        ("three-labels", [], "does not say which task it was fine-tuned on; give --task"),
        ("three-labels", ["--task", "regression"], "classification with 3 labels: x, y, z, th"),
        ("model", ["--task", "sst2"], "has no head for a task; fine-tune it first"),
        ("three-labels", ["--task", "sst2", "--seq_len", "41"], "reads 40 tokens at most"),
        ("three-labels", FEATURES, "within finetune alone"),
    ],
)
def test_models_that_cannot_predict_are_refused(
    folder, ranks, monkeypatch, tmp_path, capsys, model, flags, message
):
    monkeypatch.setattr(run, "start_ranks", lambda: ranks)
    monkeypatch.setattr(run, "stop_ranks", lambda: None)
    files = ["--model", folder / model, "--input", folder / "test.tsv"]
    columns, output = ["--columns.text", "sentence"], ["--output", tmp_path / "out"]
    assert command(["predict", *map(str, (*files, *columns, *output, *flags))]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_grid_may_grow(grid, folder, finetune):
    more = {"search_seeds": [0, 1, 5], "search_global_batch": [8]}
    shutil.copytree(grid, folder / "grown")
    grown, at_once = (results_of(finetune(name, **more)) for name in ("grown", "longer"))
    assert grown == at_once
    assert [each["seed"] for each in grown["runs"]] == [0, 1, 5]


@pytest.mark.parametrize(
    ("output", "changes", "says"),
    [
        ("missing", {"train": ["none.tsv"]}, "(?i)no such file.*none.tsv"),
        (
            "grid",
            {"seq_len": 12, "warmup_fraction": 0.2},
            "seq_len was 16 and is now 12.*warmup_fraction was 0.1 and is now 0.2",
        ),
        ("model", {}, "exists and is not a fine-tuning, it has no runs; give another"),
        ("new", {"seq_len": 41}, "seq_len is 41.*reads 40 tokens at most"),
        (
            "new",
            {"model": "three-labels"},
            "a head for classification with 3 labels: x, y, z, this task.*--replace_head true",
        ),
    ],
)
def test_what_does_not_fit_is_refused(grid, finetune, output, changes, says):
    with pytest.raises((ValueError, OSError), match=says):
        finetune(output, **changes)


@pytest.mark.parametrize(
    ("task", "name", "text", "columns", "metric", "least"),
    [
        ("swag", "swag.csv", CHOICES, ColumnSettings(), "accuracy", 1.0),
        ("regression", "n.jsonl", NUMBERS, SCORED_PAIRS, "pearson", 0.9),
    ],
)
def test_other_tasks_learn(folder, finetune, task, name, text, columns, metric, least):
    (folder / name).write_text(text)
    once = {"search_global_batch": [4], "test": [], "search_epochs": [8], "search_seeds": [0]}
    once |= {"train": [str(folder / name)], "validation": [str(folder / name)]}
    output = finetune(task, task=task, columns=columns, **once)
    [metrics] = results_of(output)["best"]["metrics"].values()
    assert metrics[metric] >= least


def test_a_head_goes_on_where_it_fits(grid, finetune):
    once = {"search_seeds": [0], "search_global_batch": [16]}
    goes_on = finetune("goes-on", model="grid/best", **once)
    new = finetune("other", model="three-labels", replace_head=True, **once)
    losses = [results_of(output)["runs"][0]["train_loss"] for output in (goes_on, new)]
    assert losses[0] < 0.5 * losses[1]


def test_losses_are_those_of_a_loop_over_transformers(folder, ranks):
    settings = settings_of(folder, "losses")
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
        batch = padded([item.sequences[0] for item in step.items])
        labels = torch.tensor([int(item.labels[0]) for item in step.items])
        loss = theirs(**batch, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert len(losses) == 16
    found = losses_of(ranks, settings)
    assert found == pytest.approx(losses, abs=1e-4)
    half = losses_of(ranks, dataclasses.replace(settings, precision="bf16"))
    assert half != found
    assert half == pytest.approx(losses, abs=0.05)


def test_the_model_trained_in_bf16_is_kept_as_it_was_measured(finetune):
    half = {"precision": "bf16", "search_global_batch": [8], "search_epochs": [6]}
    output = finetune("bf16", **half)
    weights = safetensors.torch.load_file(output / "best/model.safetensors").values()
    assert {weight.dtype for weight in weights} == {torch.float32}
    assert all((weight == weight.bfloat16().float()).all() for weight in weights)
    assert results_of(output)["best"]["metrics"]["dev"]["accuracy"] == 1.0
    facts = json.loads((output / "best/config.json").read_text())["beambert"]
    assert facts["finetuned"]["precision"] == "bf16", "in which `predict` computes"
    finished = [json.loads(path.read_text()) for path in output.glob("runs/*")]
    assert [each["made_with"]["precision"] for each in finished] == ["bf16", "bf16"]


@pytest.mark.parametrize(
    ("device", "changes", "expected"),
    [
        (H200, {}, "bf16"),
        (H200, {"precision": "fp32"}, "fp32"),
        (Device("a V100"), {}, "fp32"),
        (Device("this CPU"), {"precision": "bf16"}, "bf16"),
    ],
)
def test_the_device_decides_the_precision_if_nobody_else_does(
    folder, ranks, monkeypatch, capsys, device, changes, expected
):
    monkeypatch.setattr(run, "describe_device", lambda _: device)
    prepared = prepare_data(settings_of(folder, "new", **changes))
    assert run.decide_precision(prepared, ranks).settings.precision == expected
    said = "H200: fine-tuning in bf16; --precision fp32 does as on a CPU\n"
    assert capsys.readouterr().out == (said if device is H200 and not changes else "")


def test_fine_tuning_says_that_a_cpu_is_slow_in_bf16(folder, ranks, monkeypatch, capsys):
    monkeypatch.setattr(run, "describe_device", lambda _: Device("this CPU", bf16_slowdown=50.0))
    prepared = prepare_data(settings_of(folder, "new", precision="bf16"))
    assert run.decide_precision(prepared, ranks).settings.precision == "bf16"
    expected = "this CPU multiplies 50 times as slowly in bf16 as in fp32; --precision fp32 is"
    assert capsys.readouterr().out.startswith(expected)


def test_a_search_goes_on_in_its_precision_on_another_device(grid, folder, ranks, monkeypatch):
    monkeypatch.setattr(run, "describe_device", lambda _: H200)
    prepared = prepare_data(settings_of(folder, grid.name, search_seeds=[0, 1, 2]))
    assert run.decide_precision(prepared, ranks).settings.precision == "fp32"


def test_a_model_of_the_tasks_own_is_trained_in_fp32(folder, ranks, monkeypatch):
    monkeypatch.setattr(run, "describe_device", lambda _: H200)
    prepared = prepare_data(settings_of(folder, "new"))
    tagger = SimpleNamespace(build_model=print, model_files=print)
    prepared = dataclasses.replace(prepared, task=tagger)
    assert run.decide_precision(prepared, ranks).settings.precision == "fp32"


@pytest.mark.parametrize(
    ("given", "recorded", "expected"),
    [
        (None, {"precision": "bf16"}, "bf16"),
        ("fp32", {"precision": "bf16"}, "fp32"),
        (None, {}, "fp32"),
    ],
)
def test_predict_computes_in_the_precision_of_the_fine_tuning(given, recorded, expected):
    model = SimpleNamespace(provenance={"finetuned": {"task": "sst2", **recorded}}, where="best")
    settings = PredictSettings(model="best", input=["a"], output="b", precision=given)
    assert run._as_finetuned(settings, model).precision == expected


def test_predict_refuses_a_precision_that_does_not_exist():
    record = {"finetuned": {"task": "sst2", "precision": "fp16"}}
    settings = PredictSettings(model="best", input=["a"], output="b")
    message = "best says that it was fine-tuned in 'fp16', expected fp32 or bf16; give --precision"
    with pytest.raises(ValueError, match=message):
        run._as_finetuned(settings, SimpleNamespace(provenance=record, where="best"))
