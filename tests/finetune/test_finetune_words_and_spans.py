"""ner and squad2 by the command line: parts of real corpora learned by heart, on 1 and 2 ranks."""

import json

import numpy as np
import pytest

from pipeline.documents.text_files import read_text
from tests.trainer.tiny_run import launch
from tokenizer.word_rule import UNCASED
from trainer.conll.read import Columns, read_conll
from trainer.conversion.export import export_hf
from trainer.finetune.tokens.task import compare_entities
from trainer.model.bert import build_model
from trainer.model.config import BertConfig

pytestmark = pytest.mark.engines

SIZES = {"num_layers": 2, "hidden_size": 48, "num_heads": 2, "intermediate_size": 96}
NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
CONFIG = BertConfig(vocab_size=30_522, max_position_embeddings=160, **SIZES, **NO_DROPOUT)
# File, settings of every run, and those of training.
TASKS = {
    "ner": ("words.conll", "--seq_len 64", "--search_peak_lr 3e-3 --search_epochs 30"),
    "squad2": (
        "questions.json",
        "--seq_len 160 --squad.stride 64",
        "--search_peak_lr 2e-3 --search_epochs 40",
    ),
}
FROZEN = "--search_peak_lr 1e-12 --search_epochs 1"


@pytest.fixture(scope="module")
def folder(shared_data, tmp_path_factory):
    """A model of random weights, 41 sentences of WNUT-17, and 4 questions each of 6 paragraphs."""
    path = tmp_path_factory.mktemp("finetune")
    vocab = (shared_data / "data/bert_vocab/bert-base-uncased-vocab.txt").read_bytes()
    state = build_model(CONFIG, 1).state_dict()
    export_hf(state, CONFIG, vocab, str(path / "model"), rule=UNCASED, provenance={})
    text = (shared_data / "data/ner_wnut17/train.conll").read_text()
    sentences = [block.strip("\n") for block in text.split("\t\n") if "B-" in block][:40]
    longest = "\n".join(sentences[:6])  # in windows
    (path / "words.conll").write_text("\n\n".join(["# of WNUT-17", *sentences, longest]) + "\n\n")
    content = json.loads(read_text(str(shared_data / "data/squad/squad_v2_half_dev.json.zst")))
    data = [_choose_questions(article) for article in content["data"][:3]]
    (path / "questions.json").write_text(json.dumps({"version": "v2.0", "data": data}))
    return path


def _choose_questions(article):
    """3 questions with an answer and one without of 2 paragraphs."""
    paragraphs = []
    for paragraph in article["paragraphs"][:2]:
        answerable = [each for each in paragraph["qas"] if each["answers"]][:3]
        impossible = [each for each in paragraph["qas"] if not each["answers"]][:1]
        paragraphs.append({"context": paragraph["context"], "qas": [*answerable, *impossible]})
    return {"title": article["title"], "paragraphs": paragraphs}


def _finetune(folder, task, model, output, flags, world_size=1):
    file, settings, _ = TASKS[task]
    given = {"model": model, "train": file, "validation": file, "output": output}
    words = [word for name, place in given.items() for word in (f"--{name}", str(folder / place))]
    words += ["--task", task, "--search_global_batch", "8", *settings.split(), *flags.split()]
    launch(["-m", "trainer", "finetune"], words, world_size)
    return json.loads((folder / output / "results.json").read_text())


@pytest.fixture(scope="module")
def results(folder):
    """Of training, by task."""
    return {task: _finetune(folder, task, "model", task, TASKS[task][2]) for task in TASKS}


def test_entities_are_learned_and_written_as_columns(folder, results):
    train, metrics = folder / "words.conll", results["ner"]["best"]["metrics"]["words"]
    assert metrics["f1"] > 0.9
    assert results["ner"]["data"]["validation"][0]["sentences_in_windows"] > 0
    lines = (folder / "ner/predictions/words/predictions.conll").read_text().split("\n")
    tags = [line.rpartition("\t")[2] for line in lines if "\t" in line]
    assert [line.rpartition("\t")[0] or line for line in lines] == train.read_text().split("\n")
    originals = read_conll(train.read_text(), "train", Columns())
    split = np.split(np.array(tags), np.cumsum([len(each.words) for each in originals])[:-1])
    found = [each.tolist() for each in split]
    scores, _ = compare_entities([each.tags for each in originals], found)
    assert scores.f1 == pytest.approx(metrics["f1"])


def test_answers_are_learned_and_written(folder, results):
    metrics = results["squad2"]["best"]["metrics"]["questions"]
    assert metrics["f1"] > 80
    facts = results["squad2"]["data"]["validation"][0]
    assert (facts["examples"], facts["questions_without_answer"]) == (24, 6)
    assert facts["items"] > facts["examples"]
    written = folder / "squad2/predictions/questions"
    predictions = json.loads((written / "predictions.json").read_text())
    null_odds = json.loads((written / "null_odds.json").read_text())
    assert len(predictions) == 24
    unanswered = {key for key, value in null_odds.items() if value > metrics["null_threshold"]}
    assert {key for key, text in predictions.items() if not text} == unanswered


@pytest.mark.parametrize("task", ["ner", "squad2"])
def test_two_ranks_predict_every_example_once(folder, task, results):
    output = f"{task}-two"
    together = _finetune(folder, task, f"{task}/best", output, FROZEN, world_size=2)
    metrics, expected = (each["best"]["metrics"] for each in (together, results[task]))
    assert metrics == {file: pytest.approx(values, abs=1e-3) for file, values in expected.items()}
    for path in (folder / task / "predictions").rglob("predictions.*"):
        again = folder / output / path.relative_to(folder / task)
        assert again.read_text() == path.read_text()
