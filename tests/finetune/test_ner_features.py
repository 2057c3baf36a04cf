"""The BiLSTM over a frozen model's states: packing, the task ner-features from files to results."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from tests.trainer.lettered_model import export_lettered_model
from tests.trainer.tiny_run import launch
from tokenizer.word_rule import UNCASED
from trainer.cli import main
from trainer.finetune.settings import FinetuneSettings, TokenSettings
from trainer.finetune.text import TextEncoder
from trainer.finetune.tokens.features import open_ner_features
from trainer.inference.open_model import open_model
from trainer.model.packed_inputs import PackedInputs
from trainer.model.tagger import VectorStore, build_tagger
from trainer.model.task_heads import Head

LENGTHS = (3, 1, 5)
FLAGS = "--search_peak_lr 1e-2 --search_global_batch 4 --search_epochs 8 --seq_len 40"
HEAD = Head("tokens", ("O", "B-X", "I-X"))


@pytest.fixture
def store():
    store, generator = VectorStore(), np.random.default_rng(0)
    for rows in (4, 2, 7):
        store.add(generator.standard_normal((rows, 6)).astype(np.float32))
    return store


def inputs_of(rows, lengths):
    borders = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    blank = torch.zeros(len(rows), dtype=torch.int32)
    ids = torch.tensor(rows, dtype=torch.int32)
    return PackedInputs(ids, blank, blank, borders, max(lengths, default=0))


def test_rows_are_found_in_whichever_array_they_are(store):
    every = store.take(np.arange(13))
    assert every.shape == (13, 6)
    np.testing.assert_array_equal(store.take(np.array([12, 0, 4, 5, 3])), every[[12, 0, 4, 5, 3]])


def test_packed_sentences_are_tagged_as_each_by_itself(store):
    tagger = build_tagger(store, 6, hidden_size=8, num_layers=2, head=HEAD, seed=1).eval()
    rows = [7, 2, 11, 0, 5, 4, 3, 12, 1]
    together = tagger(inputs_of(rows, LENGTHS))
    assert together.shape == (9, 3)
    start = 0
    for length in LENGTHS:
        vectors = torch.from_numpy(store.take(np.array(rows[start : start + length])))
        alone = tagger.task_head(tagger.lstm(vectors[:, None])[0][:, 0])
        torch.testing.assert_close(together[start : start + length], alone, rtol=0, atol=1e-6)
        start += length


def test_no_sentence_gives_zero_gradients(store):
    tagger = build_tagger(store, 6, hidden_size=8, num_layers=1, head=HEAD, seed=1)
    empty = tagger(inputs_of([], []))
    assert empty.shape == (0, 3)
    empty.sum().backward()
    assert all(torch.count_nonzero(parameter.grad) == 0 for parameter in tagger.parameters())


def test_weights_are_drawn_from_the_seed_alone(store):
    states = (build_tagger(store, 6, 8, 2, HEAD, seed).state_dict() for seed in (1, 1, 2))
    first, again, other = states
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["task_head.weight"], other["task_head.weight"])


@pytest.fixture
def folder(tmp_path):
    export_lettered_model(tmp_path / "hf", num_layers=4)
    names, others = ("bob", "zoe", "kim"), ("the", "cat", "sat", "dog", "a")
    sentences = [
        [(others[(k + n) % 5], "O") for k in range(n % 4 + 1)]
        + [(names[n % 3], "B-PER")]
        + [("sat", "O")] * (n % 2)
        for n in range(30)
    ]
    sentences.append([("the", "O"), ("zoe", "B-PER")] * 30)  # 120 pieces, the model reads 40
    text = "\n\n".join("\n".join("\t".join(row) for row in sentence) for sentence in sentences)
    (tmp_path / "words.conll").write_text(text + "\n")
    return tmp_path


def settings_of(folder, **tokens):
    words = [str(folder / "words.conll")]
    files = {"model": str(folder / "hf"), "train": words, "validation": words}
    given = {**files, "output": str(folder / "out"), "tokens": TokenSettings(**tokens)}
    return FinetuneSettings(task="ner-features", **given)


def test_vectors_are_those_of_the_command_features(folder):
    files = ["--model", str(folder / "hf"), "--input", str(folder / "words.conll")]
    flags = ["--layers=-1,-2,-3,-4", "--rows", "word"]
    assert main(["features", *files, "--output", str(folder / "states"), *flags]) == 0
    task = open_ner_features(settings_of(folder))
    examples = task.read(str(folder / "words.conll"), "train").examples
    encoder = TextEncoder(open_model(str(folder / "hf")).vocabulary(), UNCASED, 40)
    encoded = task.encode(examples, task.find_labels(examples), encoder, "train")
    rows = np.concatenate([item.sequences[0].input_ids for item in encoded.items])
    np.testing.assert_array_equal(rows, np.arange(encoded.counts["words"]))
    table = pq.read_table(folder / "states")
    layers = [np.array(table.column(f"layer_{n}").to_pylist()) for n in (4, 3, 2, 1)]
    found = task._store.take(rows.astype(np.int64))
    np.testing.assert_allclose(found, np.concatenate(layers, axis=1), atol=1e-5)


@pytest.mark.engines
def test_entities_are_learned_and_the_encoder_is_not_touched(folder):
    before = open_model(str(folder / "hf")).state
    files = {"model": "hf", "train": "words.conll", "validation": "words.conll", "output": "out"}
    flags = [word for name, file in files.items() for word in (f"--{name}", str(folder / file))]
    small = "from trainer.cli import main; from trainer.finetune.tokens import features as task"
    command = ["-c", f"{small}; task.LSTM_SIZE = 24; raise SystemExit(main())", "finetune"]
    command += ["--task", "ner-features", *flags, *FLAGS.split()]
    launch(command, (), 1)
    results = json.loads((folder / "out" / "results.json").read_text())
    assert results["best"]["metrics"]["words"]["f1"] > 0.95
    lines = (folder / "out/predictions/words/predictions.conll").read_text().splitlines()
    right = [line.split("\t")[1] == line.split("\t")[2] for line in lines if line]
    assert np.mean(right) > 0.95
    best = json.loads((folder / "out" / "best" / "config.json").read_text())
    assert (best["model_type"], best["hidden_size"]) == ("bilstm-tagger", 24)
    assert best["labels"] == results["head"]["labels"]
    after = open_model(str(folder / "hf")).state
    assert all(torch.equal(before[name], after[name]) for name in before)
    launch(command, (), 1)  # again: nothing is left to do, and the best model is opened
    assert json.loads((folder / "out" / "results.json").read_text()) == results


def test_layers_that_the_model_lacks_are_refused(folder):
    with pytest.raises(ValueError, match="layers names 9; the model has 0"):
        open_ner_features(settings_of(folder, feature_layers="9"))
