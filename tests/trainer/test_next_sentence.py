"""`nsp`: the probability that B follows A, beside transformers', from runs and exports."""

import re

import pytest
import torch
import transformers

from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import train_tiny_run
from trainer.cli import main
from trainer.inference.next_sentence import follow_probabilities, open_judge

pytestmark = pytest.mark.engines

PAIRS = [("w1 w2 w3", "w9"), ("w20", "w21 w4 w5 w6")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("nsp")
    write_tiny_dataset(path / "data")
    run = train_tiny_run(path / "data", path / "run")
    assert main(["export", str(run), "--output", str(path / "hf")]) == 0
    return path


def test_probabilities_are_those_of_transformers(folder):
    theirs = transformers.BertForNextSentencePrediction.from_pretrained(folder / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "hf")
    found = follow_probabilities(open_judge(str(folder / "run")), PAIRS)
    for (first, second), probability in zip(PAIRS, found, strict=True):
        with torch.no_grad():
            logits = theirs(**tokenizer(first, second, return_tensors="pt")).logits[0]
        assert probability == pytest.approx(float(logits.softmax(-1)[0]), abs=1e-6)
    assert found == follow_probabilities(open_judge(str(folder / "hf")), PAIRS)


def test_the_command(folder, capsys):
    [expected] = follow_probabilities(open_judge(str(folder / "hf")), PAIRS[:1])
    assert main(["nsp", "--model", str(folder / "run"), *PAIRS[0]]) == 0
    [printed] = re.findall(r"with probability (\S+)\n", capsys.readouterr().out)
    assert float(printed) == pytest.approx(expected, abs=5e-5)


def test_a_pair_that_is_too_long_is_refused(folder):
    says = r"the pair beginning 'w1 w1 .* has 34 tokens .* the model reads 32; shorten"
    with pytest.raises(ValueError, match=says):
        follow_probabilities(open_judge(str(folder / "hf")), [("w1 " * 30, "w2")])


def test_a_model_trained_without_next_sentences_is_refused(folder):
    run = train_tiny_run(folder / "data", folder / "alone", objective="mlm")
    says = "was trained with objective mlm, so its next sentence head is as new"
    with pytest.raises(ValueError, match=says):
        open_judge(str(run))
    assert main(["export", str(run), "--output", str(folder / "hf-alone")]) == 0
    with pytest.raises(ValueError, match="was trained with objective mlm"):
        open_judge(str(folder / "hf-alone"))
