"""The card of an export: what it says, no more than is known, and which README.md it replaces."""

import json
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline.storage.folder import Folder
from tokenizer.word_rule import CASED, UNCASED
from trainer.conversion.model_card import is_unedited, model_card
from trainer.model.config import BertConfig
from trainer.model.task_heads import Head
from trainer.runs.metrics import MetricsFile
from trainer.runs.training_facts import (
    base_model_facts,
    pairs_facts,
    source_licences,
    training_facts,
)

SIZES = {"hidden_size": 128, "num_layers": 2, "num_heads": 2, "intermediate_size": 256}
CONFIG = BertConfig(vocab_size=64, **SIZES)
LAUNCH = {
    "world_size": 8,
    "hardware": {"machine": "x86_64", "cpus": 64, "gpus": ["NVIDIA H200"] * 8},
    "python": "3.12.1",
    "software": {"torch": "2.11.0", "deepspeed": "0.19.8", "wandb": None},
}

PHASE = {"seq_len": 128, "global_batch": 256, "steps": 100, "peak_lr": None}
RUN_CONFIG = {"optimizer": {"name": "lamb"}, "phases": [PHASE], "masking": "0.3-0.15"}


def metadata(card):
    return yaml.safe_load(card.decode().split("---\n")[1])


def test_a_card_says_what_the_run_says():
    dataset = {"name": "wiki | more", "weight": 2.0, "root_hash": "ab" * 8}
    dataset["licences"] = ["CC-BY-SA-4.0", "MIT"]
    training = json.loads(json.dumps(training_facts(RUN_CONFIG, {"launches": [{}, LAUNCH]})))
    provenance = {"steps": 60, "tokens_seen": 1_234_567, "objective": "mlm+nsp"}
    provenance |= {"datasets": [dataset], "training": training}
    card = model_card(CONFIG, provenance, rule=UNCASED).decode()
    use = {"library_name": "transformers", "pipeline_tag": "fill-mask", "tags": ["bert"]}
    assert metadata(card.encode()) == use
    for line in (
        "| tokens seen | 1,234,567 |",
        "| masking | drawn anew at every reading, 0.3-0.15 |",
        "| hardware of the last start | 8 rank(s) on NVIDIA H200 |",
        "| software | Python 3.12.1, torch 2.11.0, deepspeed 0.19.8 |",
        "| phase 1 | length 128, batches of 256, steps 100 |",
        "| wiki \\| more | 2.0 | `abababababababab` | CC-BY-SA-4.0, MIT |",
        "AutoModelForMaskedLM.from_pretrained(FOLDER)",
    ):
        assert line in card


PAIRS_ROW = {
    "step": 60, "split": "validation", "pairs": 400, "pairs_accuracy": 0.64,
    "pairs_mean_accuracy": 0.6, "pairs_standard_error_of_mean": 0.0123,
    "pairs_groups": {"island_effects": 0.5, "binding": 0.7},
}  # fmt: skip


def test_a_card_has_the_minimal_pairs_with_their_standard_errors():
    pairs = json.loads(json.dumps(pairs_facts(PAIRS_ROW, "s3://bucket/blimp.jsonl")))
    assert pairs["standard_error"] == pytest.approx((0.64 * 0.36 / 400) ** 0.5)
    card = model_card(CONFIG, {"steps": 60, "minimal_pairs": pairs}, rule=UNCASED).decode()
    assert card.partition("## Minimal pairs\n\n")[2].partition("\n\n")[0].splitlines() == [
        "| pairs; chance is 50 % | number | accuracy | standard error |",
        "| --- | --- | --- | --- |",
        "| all of blimp.jsonl | 400 | 64.0 % | 2.4 % |",
        "| **mean of the groups below** | 2 groups | 60.0 % | 1.2 % |",
        "| island effects |  | 50.0 % |  |",
        "| binding |  | 70.0 % |  |",
    ]
    tuned = model_card(CONFIG, {"minimal_pairs": pairs}, rule=UNCASED, head=Head("span"))
    assert b"Minimal pairs" not in tuned, "its weights are others than those that were measured"


def test_a_card_of_pairs_without_groups_and_of_an_older_run():
    row = PAIRS_ROW | {"pairs_groups": {}}
    card = model_card(CONFIG, {"minimal_pairs": pairs_facts(row, "mine/")}, rule=UNCASED).decode()
    assert "| all of mine | 400 | 64.0 % | 2.4 % |\n\n## Use" in card
    older = {name: value for name, value in PAIRS_ROW.items() if "error" not in name}
    facts = {"minimal_pairs": pairs_facts(older, "p")}
    assert "| 2 groups | 60.0 % |  |" in model_card(CONFIG, facts, rule=UNCASED).decode()
    assert b"Minimal pairs" not in model_card(CONFIG, {"steps": 1}, rule=UNCASED)


def test_a_row_of_metrics_is_found_by_its_step_and_column(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    assert metrics.find_row(60, "pairs_accuracy") is None
    for row in ({**PAIRS_ROW, "step": 40}, {"step": 60, "mlm_loss": 2.0}, PAIRS_ROW):
        metrics.append(row)
    with metrics.path.open("a") as file:
        file.write('{"step": 60, "pairs_accuracy": 0.1')  # a row that is being written
    assert metrics.find_row(60, "pairs_accuracy") == PAIRS_ROW
    assert metrics.find_row(50, "pairs_accuracy") is None
    metrics.path.write_text('{"pairs_accuracy": 1}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 1 is no row"):
        metrics.find_row(60, "pairs_accuracy")


def test_a_card_names_the_models_that_training_began_with(tmp_path):
    (tmp_path / "first").mkdir()
    text = "---\nlicense: apache-2.0\nbase_model: a/b\n---\n# A\n"
    (tmp_path / "first/README.md").write_text(text)
    first = base_model_facts(f"{tmp_path}/first/")
    assert first == {"name": "first", "licence": "apache-2.0", "base_model": "a/b"}
    (tmp_path / "second").mkdir()
    datasets = [{"name": "wiki", "licences": ["MIT"]}]
    provenance = {"steps": 7, "tokens_seen": 4321, "datasets": datasets, "base_model": first}
    (tmp_path / "second/README.md").write_bytes(model_card(CONFIG, provenance, rule=UNCASED))
    (tmp_path / "second/config.json").write_text(json.dumps({"beambert": provenance}))
    second = base_model_facts(str(tmp_path / "second"))
    card = model_card(CONFIG, {"steps": 1, "base_model": second}, rule=UNCASED)
    assert metadata(card)["base_model"] == "second"
    table = card.decode().partition("## Base model\n")[2].partition("##")[0]
    assert table.strip().splitlines()[2:] == [
        "| training began with | second |",
        "| licence | not stated |",
        "| its steps | 7 |",
        "| its tokens seen | 4,321 |",
        "| its data | wiki (MIT) |",
        "| training began with | first |",
        "| licence | apache-2.0 |",
        "| its base model | a/b |",
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [("README.md", "---\n: [\n---\n"), ("README.md", "# A"), ("config.json", "{")],
)
def test_a_base_model_that_says_nothing_has_a_name(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    assert base_model_facts(str(tmp_path)) == {"name": tmp_path.name}


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"licence": ["MIT", "", "CC0-1.0", "MIT"]}, ["CC0-1.0", "MIT"]),
        ({"name": ["wiki"]}, []),
        (None, []),
    ],
)
def test_licences_are_those_that_the_sources_state(tmp_path, columns, expected):
    if columns is not None:
        pq.write_table(pa.table(columns), tmp_path / "sources.parquet")
    folder = Folder(str(tmp_path))
    dataset = SimpleNamespace(folder=folder, read_file=folder.read)
    assert source_licences(dataset) == expected


def test_a_card_says_nothing_that_is_not_known():
    card = model_card(CONFIG, {}, rule=CASED).decode()
    assert "None" not in card
    assert [line for line in card.splitlines() if line.startswith("##")] == ["## Use"]
    assert training_facts({}, {}) == {}
    assert training_facts({}, {"launches": [{"world_size": 2}]}) == {}
    assert training_facts({}, {"launches": [{"python": "3.12"}]}) == {"software": "Python 3.12"}


@pytest.mark.parametrize(
    ("kind", "pipeline"),
    [
        ("classification", "text-classification"),
        ("tokens", "token-classification"),
        ("span", "question-answering"),
        ("regression", "text-classification"),
        ("choice", "multiple-choice"),
    ],
)
def test_a_fine_tuned_model_names_its_task(kind, pipeline):
    metrics = {"dev.tsv": {"accuracy": 0.91234, "n": 3}}
    finetuned = {"task": "sst-2", "run": "a", "seq_len": 128, "metrics": metrics}
    head = Head(kind, ("no", "yes") if kind in ("classification", "tokens") else ())
    card = model_card(CONFIG, {"finetuned": finetuned}, rule=UNCASED, head=head)
    assert metadata(card)["pipeline_tag"] == pipeline
    assert b"| accuracy, dev.tsv | 0.9123 |" in card
    assert b"# BERT of 2 layers\n" in card


def test_a_card_is_known_again_until_it_is_edited():
    card = model_card(CONFIG, {"steps": 1}, rule=UNCASED)
    assert card == model_card(CONFIG, {"steps": 1}, rule=UNCASED)
    assert is_unedited(card)
    for other in (card.replace(b"bert", b"Bert"), card + b"More.\n", b"# Mine\n", b""):
        assert not is_unedited(other)
