"""All URLs of a command are opened with its --storage_options: models, inputs and outputs."""

import io
import json

import fsspec
import pyarrow.parquet as pq
import pytest
from transformers import BertForMaskedLM

from tests.finetune.tiny_model import write_pretrained, write_sst2
from tests.keyed_store import OPTIONS, write_to_store
from trainer.cli import main
from trainer.finetune.settings import FinetuneSettings
from trainer.finetune.task import open_task
from trainer.minimal_pairs.read import read_pairs
from trainer.runs.training_facts import base_model_facts

STORE = "keyed://options"
MODEL = f"{STORE}/model"
PARSED_OPTIONS = json.loads(OPTIONS)
PAIR = {"sentence_good": "the cat sat .", "sentence_bad": "the sat cat ."}
QUESTION = {"id": "q", "question": "who sat ?", "answers": [{"text": "cat", "answer_start": 4}]}
SQUAD = {"data": [{"title": "t", "paragraphs": [{"context": "the cat sat .", "qas": [QUESTION]}]}]}


def put(name, content):
    """Writes a file to the store; its URL."""
    return write_to_store(f"options/{name}", content.encode())


def stored(name):
    return fsspec.filesystem("keyed", key="right").cat_file(f"options/{name}")


def run_command(*words):
    assert main([*map(str, words), "--storage_options", OPTIONS]) == 0


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A pretrained model on a disk; MODEL is a copy of it in the store."""
    folder = write_pretrained(tmp_path_factory.mktemp("model") / "model")
    for path in folder.iterdir():
        write_to_store(f"options/model/{path.name}", path.read_bytes())
    return folder


@pytest.mark.usefixtures("model")
def test_fill_mask(capsys):
    run_command("fill-mask", "--model", MODEL, "the [MASK] sat .", "--top_k", 3)
    assert len(capsys.readouterr().out.splitlines()) >= 3


@pytest.mark.engines
def test_export_writes_to_a_url_and_replaces_an_earlier_export(model, tmp_path):
    for _ in range(2):
        run_command("export", MODEL, "--output", f"{STORE}/again")
    for name in ("config.json", "model.safetensors", "vocab.txt"):
        (tmp_path / name).write_bytes(stored(f"again/{name}"))
    assert BertForMaskedLM.from_pretrained(tmp_path).config.hidden_size == 32
    assert stored("again/vocab.txt") == (model / "vocab.txt").read_bytes()


@pytest.mark.usefixtures("model")
def test_evaluate_reads_pairs_and_writes_numbers():
    pairs = put("pairs.jsonl", json.dumps(PAIR))
    run_command("evaluate", "--model", MODEL, "--pairs", pairs, "--output", f"{STORE}/numbers.json")
    numbers = json.loads(stored("numbers.json"))
    assert (numbers["model"], numbers["pairs"], numbers["equal_pairs"]) == (MODEL, pairs, 0)


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "the cat\nthe film\n"),
        ("a.jsonl", '{"text": "the cat"}\n{"text": "the film"}\n'),
        ("a.csv", "text\nthe cat\nthe film\n"),
        ("a.conll", "the\ncat\n\nthe\nfilm\n"),
    ],
)
def test_features_reads_texts_and_writes_vectors(name, content):
    files = ["--input", put(name, content), "--output", f"{STORE}/{name}.parquet"]
    run_command("features", "--model", MODEL, *files, "--rows", "mean")
    table = pq.read_table(io.BytesIO(stored(f"{name}.parquet")))
    assert table.column("text").to_pylist() == [0, 1]


@pytest.mark.engines
@pytest.mark.usefixtures("model")
def test_finetune_and_predict_read_files_and_models(tmp_path):
    write_sst2(tmp_path)
    urls = {
        name: put(f"{name}.tsv", (tmp_path / f"{name}.tsv").read_text())
        for name in ("train", "dev", "test")
    }
    files = ["--train", urls["train"], "--validation", urls["dev"], "--test", urls["test"]]
    output = tmp_path / "out"
    once = ["--seq_len", 16, "--search_epochs", 1, "--output", output]
    run_command("finetune", "--task", "sst2", "--model", MODEL, *files, *once)
    written = [path for path in output.rglob("*") if path.is_file()]
    assert not any(b"right" in path.read_bytes() for path in written), "the key is in no file"

    for path in (output / "best").iterdir():
        write_to_store(f"options/best/{path.name}", path.read_bytes())
    flags = ["--input", urls["test"], "--output", tmp_path / "predicted"]
    run_command("predict", "--model", f"{STORE}/best", *flags)
    predictions = "predictions/test/SST-2.tsv"
    assert (tmp_path / "predicted" / predictions).read_bytes() == (
        output / predictions
    ).read_bytes()


@pytest.mark.parametrize(
    ("task", "name", "content"),
    [
        ("cola", "cola.tsv", "id\t1\t\tthe cat\n"),
        ("rte", "rte.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n"),
        ("classification", "table.csv", "text,label\nthe cat,1\n"),
        ("classification", "table.jsonl", '{"text": "the cat", "label": 1}\n'),
        ("squad", "squad.json", json.dumps(SQUAD)),
        ("ner", "ner.conll", "the O\ncat B-PER\n"),
    ],
)
def test_each_task_reads_its_files(task, name, content):
    files = {"train": [], "validation": [], "output": "out"}
    settings = FinetuneSettings(task=task, model="m", storage_options=OPTIONS, **files)
    assert len(open_task(settings).read(put(name, content), "train").examples) == 1


@pytest.mark.usefixtures("model")
def test_a_run_reads_pairs_and_the_facts_of_the_model_that_it_begins_with():
    folder = f"{STORE}/pairs"
    put("pairs/a.jsonl", json.dumps(PAIR))
    assert [pair.good for pair in read_pairs(folder, storage_options=PARSED_OPTIONS).pairs] == [
        "the cat sat ."
    ]
    facts = base_model_facts(MODEL, None, PARSED_OPTIONS)
    assert facts["provenance"] == {"steps": 9, "tokens_seen": 99}
