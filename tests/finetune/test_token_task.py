"""Token classification from a file to predicted columns, with known logits for a model's."""

import numpy as np
import pytest

from tokenizer.vocab import parse_vocab
from tokenizer.word_rule import UNCASED
from trainer.finetune.settings import FinetuneSettings
from trainer.finetune.text import TextEncoder
from trainer.finetune.tokens.task import open_ner
from trainer.model.task_heads import IGNORED

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] in rome new york ##er . -"
VOCAB = parse_vocab(WORDS.replace(" ", "\n").encode(), "vocab.txt")
FILES = {"train": ["t"], "validation": ["v"], "output": "o"}
TASK = open_ner(FinetuneSettings(task="ner", model="m", **FILES))
LABELS = ("O", "B-LOC", "I-LOC")
TEXT = "New B-LOC\nYorker-. I-LOC\n\u200b O\n\nRome B-LOC\n. O\n"
BIOES = ("O", "B-X", "I-X", "E-X", "S-X")


def _read(folder, text, split="train"):
    (folder / "f.conll").write_text(text)
    return TASK.read(str(folder / "f.conll"), split).examples


def _logits_of_labels(item, num_labels):
    """What a model that knows the labels would say; nothing of tokens that have none."""
    logits = np.zeros((len(item.labels), num_labels), np.float32)
    known = item.labels != IGNORED
    logits[known, item.labels[known]] = 1
    logits[~known, num_labels - 1] = 5
    return logits


def _predict(folder, text, seq_len, split="train"):
    """Sentences, their items with counts, and predictions of a model that knows the labels."""
    sentences = _read(folder, text, split)
    labels = TASK.find_labels(sentences)
    encoded = TASK.encode(sentences, labels, TextEncoder(VOCAB, UNCASED, seq_len), split)
    outputs = [_logits_of_labels(each, len(labels)) for each in encoded.items]
    return sentences, encoded, TASK.decode(sentences, encoded.items, outputs, labels)


def test_only_first_pieces_have_labels(tmp_path):
    assert TASK.find_labels(_read(tmp_path, TEXT)) == LABELS
    _, (items, counts), _ = _predict(tmp_path, TEXT, 16)
    tokens = [" ".join(VOCAB.tokens[n] for n in item.sequences[0].input_ids) for item in items]
    assert tokens == ["[CLS] new york ##er - . [UNK] [SEP]", "[CLS] rome . [SEP]"]
    assert items[0].labels.tolist() == [IGNORED, 1, 2, *[IGNORED] * 3, 0, IGNORED]
    assert counts == {"words": 5, "words_without_pieces": 1, "sentences_in_windows": 0}


def test_predictions_come_back_as_the_same_lines(tmp_path):
    sentences, _, predictions = _predict(tmp_path, TEXT, 16, "validation")
    assert predictions == [("B-LOC", "I-LOC", "O"), ("B-LOC", "O")]
    metrics = TASK.score(sentences, [predictions[0], ("O", "O")])
    f1 = pytest.approx(2 / 3)
    scores = {"f1": f1, "precision": 1.0, "recall": 0.5, "tag_accuracy": 0.8}
    assert metrics == {**scores, "f1_LOC": f1}
    files = TASK.prediction_files("f.conll", sentences, predictions, metrics)
    assert files["predictions.conll"] == (
        "New B-LOC B-LOC\nYorker-. I-LOC I-LOC\n\u200b O O\n\nRome B-LOC B-LOC\n. O O\n"
    )


def test_a_long_sentence_is_read_in_windows_and_predicted_once(tmp_path):
    words = ["New B-LOC", "York I-LOC", "in O", "Rome B-LOC"] * 5 + ["Yorker" * 20 + " O"]
    sentences, (items, counts), predictions = _predict(tmp_path, "\n".join(words), 10)
    assert len(items) > 2
    assert counts["sentences_in_windows"] == 1
    assert sum(int((item.labels != IGNORED).sum()) for item in items) == 21
    assert max(len(item.sequences[0].input_ids) for item in items) <= 10
    assert predictions == [sentences[0].tags]


def test_a_word_longer_than_the_model_reads_is_predicted_once(tmp_path):
    text = "Rome B-LOC\n.-.-.-.-.-.-.- O\nRome O\n"
    assert _predict(tmp_path, text, 8)[2] == [("B-LOC", "O", "O")]


def test_test_files_need_no_tags(tmp_path):
    sentences = _read(tmp_path, "Rome\n.\n", "test")
    encoded = TASK.encode(sentences, LABELS, TextEncoder(VOCAB, UNCASED, 8), "test")
    assert encoded.items[0].labels.tolist() == []
    logits = np.array([[9, 0, 0], [0, 1, 0], [0, 0, 1], [9, 0, 0]], np.float32)
    predictions = TASK.decode(sentences, encoded.items, [logits], LABELS)
    files = TASK.prediction_files("f", sentences, predictions, {})
    assert files == {"predictions.conll": "Rome B-LOC\n. I-LOC\n"}


def test_iob1_is_learned_as_iob2_and_written_as_iob1(tmp_path):
    text = "Rome I-LOC\nRome B-LOC\nin O\n"
    sentences, _, predictions = _predict(tmp_path, text, 8)
    assert predictions == [("B-LOC", "B-LOC", "O")]
    assert TASK.score(sentences, predictions)["f1"] == 1.0
    written = TASK.prediction_files("f", sentences, predictions, {})["predictions.conll"]
    assert written == "Rome I-LOC I-LOC\nRome B-LOC B-LOC\nin O O\n"


@pytest.mark.parametrize(
    ("labels", "text", "says"),
    [
        (
            LABELS,
            "in O\nRome B-PER\n",
            "f.conll:2: tag 'B-PER' is none of those trained: O, B-LOC, I-LOC; mend it, write O, ",
        ),
        (LABELS, "Rome S-LOC\n", "f.conll:1: the file is bioes, the model's labels are iob2"),
        (BIOES, "Rome B-X\n", "f.conll:1: the file is iob2, the model's labels are bioes"),
    ],
)
def test_tags_that_training_does_not_know_are_refused(tmp_path, labels, text, says):
    sentences = _read(tmp_path, text, "validation")
    with pytest.raises(ValueError, match=says):
        TASK.encode(sentences, labels, TextEncoder(VOCAB, UNCASED, 8), "validation")


def test_training_files_of_two_schemes_or_without_entities_are_refused(tmp_path):
    first = _read(tmp_path, "Rome S-LOC\n")
    assert TASK.find_labels(first) == ("O", "B-LOC", "I-LOC", "E-LOC", "S-LOC")
    (tmp_path / "g.conll").write_text("Rome B-LOC\nRome I-LOC\n")
    second = TASK.read(str(tmp_path / "g.conll"), "train").examples
    says = r"several schemes, .*f.conll is bioes and .*g.conll is iob2"
    with pytest.raises(ValueError, match=says):
        TASK.find_labels([*first, *second])
    with pytest.raises(ValueError, match=r"f.conll: every tag is O"):
        TASK.find_labels(_read(tmp_path, "Rome O\n"))
