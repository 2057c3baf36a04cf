"""ner and squad2 by the command line: parts of real corpora learned by heart, on 1 and 2 ranks."""

import json

import numpy as np
import pytest

from pipeline.documents.text_files import read_text
from tests.trainer.two_ranks import run_ranks
from trainer.conll.read import Columns, read_conll
from trainer.conversion.export import export_hf
from trainer.finetune.tokens.task import score_entities
from trainer.model.bert import build_model
from trainer.model.config import BertConfig

pytestmark = pytest.mark.engines

SIZES = {"num_layers": 2, "hidden_size": 48, "num_heads": 2, "intermediate_size": 96}
NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
CONFIG = BertConfig(vocab_size=30_522, max_position_embeddings=160, **SIZES, **NO_DROPOUT)
FROZEN = ("--search_peak_lr", "1e-12", "--search_epochs", "1")


@pytest.fixture(scope="module")
def folder(shared_data, tmp_path_factory):
    """A folder with a model of random weights in model/."""
    path = tmp_path_factory.mktemp("finetune")
    vocab = (shared_data / "data/bert_vocab/bert-base-uncased-vocab.txt").read_bytes()
    state = build_model(CONFIG, 1).state_dict()
    export_hf(state, CONFIG, vocab, str(path / "model"), lower_case=True, provenance={})
    return path


def _finetune(task, model, file, output, *arguments, world_size=1):
    given = {"task": task, "model": model, "train": file, "validation": file, "output": output}
    flags = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    for process in run_ranks(["-m", "trainer", "finetune", *flags, *arguments], world_size):
        assert process.returncode == 0, process.stderr
    return json.loads((output / "results.json").read_text())


@pytest.fixture(scope="module")
def tagged(folder, shared_data):
    """Settings of ner, and results of training: 41 sentences of WNUT-17, some in windows."""
    text = (shared_data / "data/ner_wnut17/train.conll").read_text()
    sentences = [block.strip("\n") for block in text.split("\t\n") if "B-" in block][:40]
    longest = "\n".join(sentences[:6])
    file = folder / "words.conll"
    file.write_text("\n\n".join(["# of WNUT-17", *sentences, longest]) + "\n\n")
    arguments = ("--seq_len", "64", "--search_global_batch", "8")
    training = ("--search_peak_lr", "3e-3", "--search_epochs", "30")
    results = _finetune("ner", folder / "model", file, folder / "ner", *arguments, *training)
    return file, arguments, results


@pytest.fixture(scope="module")
def answered(folder, shared_data):
    """Settings of squad2, and results of training: 4 questions each of 6 paragraphs."""
    content = json.loads(read_text(str(shared_data / "data/squad/squad_v2_half_dev.json.zst")))
    data = [_choose_questions(article) for article in content["data"][:3]]
    file = folder / "questions.json"
    file.write_text(json.dumps({"version": "v2.0", "data": data}))
    arguments = ("--seq_len", "160", "--squad.stride", "64", "--search_global_batch", "8")
    training = ("--search_peak_lr", "2e-3", "--search_epochs", "40")
    results = _finetune("squad2", folder / "model", file, folder / "squad2", *arguments, *training)
    return file, arguments, results


def _choose_questions(article):
    """3 questions with an answer and one without of 2 paragraphs."""
    paragraphs = []
    for paragraph in article["paragraphs"][:2]:
        answerable = [each for each in paragraph["qas"] if each["answers"]][:3]
        impossible = [each for each in paragraph["qas"] if not each["answers"]][:1]
        paragraphs.append({"context": paragraph["context"], "qas": [*answerable, *impossible]})
    return {"title": article["title"], "paragraphs": paragraphs}


def test_entities_are_learned_and_written_as_columns(folder, tagged):
    train, _, results = tagged
    metrics = results["best"]["metrics"]["words"]
    assert metrics["f1"] > 0.9
    assert results["data"]["validation"][0]["sentences_in_windows"] > 0
    lines = (folder / "ner/predictions/words/predictions.conll").read_text().split("\n")
    tags = [line.rpartition("\t")[2] for line in lines if "\t" in line]
    assert [line.rpartition("\t")[0] or line for line in lines] == train.read_text().split("\n")
    originals = read_conll(train.read_text(), "train", Columns())
    split = np.split(np.array(tags), np.cumsum([len(each.words) for each in originals])[:-1])
    found = [each.tolist() for each in split]
    scores, _ = score_entities([each.tags for each in originals], found)
    assert scores.f1 == pytest.approx(metrics["f1"])


def test_answers_are_learned_and_written(folder, answered):
    _, _, results = answered
    metrics = results["best"]["metrics"]["questions"]
    assert metrics["f1"] > 80
    facts = results["data"]["validation"][0]
    assert (facts["examples"], facts["questions_without_answer"]) == (24, 6)
    assert facts["items"] > facts["examples"]
    names = ("predictions", "null_odds")
    predictions, null_odds = (
        json.loads((folder / f"squad2/predictions/questions/{name}.json").read_text())
        for name in names
    )
    assert len(predictions) == 24
    unanswered = {key for key, value in null_odds.items() if value > metrics["null_threshold"]}
    assert {key for key, text in predictions.items() if not text} == unanswered


@pytest.mark.parametrize("task", ["ner", "squad2"])
def test_two_ranks_predict_every_example_once(folder, task, request):
    file, arguments, alone = request.getfixturevalue({"ner": "tagged", "squad2": "answered"}[task])
    output, best = folder / f"{task}-two", folder / task / "best"
    together = _finetune(task, best, file, output, *arguments, *FROZEN, world_size=2)
    metrics, expected = (each["best"]["metrics"] for each in (together, alone))
    assert metrics == {file: pytest.approx(values, abs=1e-3) for file, values in expected.items()}
    for path in (folder / task / "predictions").rglob("predictions.*"):
        assert (output / path.relative_to(folder / task)).read_text() == path.read_text()
