"""The nine layouts of GLUE, word for word as they are distributed, and what its server takes."""

from itertools import product

import numpy as np
import pytest

from tests.finetune.tiny_model import TOKENS, VOCAB
from tokenizer.vocab import parse_vocab
from tokenizer.word_rule import UNCASED
from trainer.finetune.glue import ENTAILMENT
from trainer.finetune.pairs import PairExample
from trainer.finetune.settings import FinetuneSettings
from trainer.finetune.task import open_task
from trainer.finetune.text import TextEncoder

QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
MNLI = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
FILES = {
    "cola": (
        "gj04\t1\t\tthe cat sat .\ngj04\t0\t*\tcat the sat .\n",
        "index\tsentence\n0\tthe dog ran .\n",
    ),
    "sst2": (
        "sentence\tlabel\nthe film is good \t1\nvery bad \t0\n",
        "index\tsentence\n0\ta film .\n",
    ),
    "mrpc": (
        'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t70\t71\tthe cat sat\ta "cat sat\n0\t8\t9\tthe dog\ta film\n',
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t10\t11\tthe cat\ta cat\n",
    ),
    "stsb": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tmain-captions\tMSRvid\t2012test\t1\tnone\tnone\tthe cat sat\ta cat sat\t5.000\n"
        "1\tmain-captions\tMSRvid\t2012test\t4\tnone\tnone\tthe dog\ta film\t0.250\n",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\n"
        "0\tmain-captions\tMSRvid\t2012test\t24\tnone\tnone\tthe cat\ta dog\n",
    ),
    "qqp": (
        f"{QQP}1\t2\t3\tis the cat good\tis a cat good\t1\n"
        "4\t5\t6\tis the dog bad\n7\t8\t9\tis the film bad\tis a dog good\t0\n",
        "id\tquestion1\tquestion2\n0\tis the cat bad\tis a cat bad\n",
    ),
    "mnli": (
        "\t".join([*MNLI.split(), "sentence1", "sentence2", "label1", "gold_label"])
        + "\n0\t31\t31n\tfiction\t( a )\t( b )\t(R a)\t(R b)\tthe cat sat\tthe cat ran\tneutral\tneutral\n"
        + "1\t32\t32e\tfiction\t( a )\t( b )\t(R a)\t(R b)\tthe cat sat\ta cat sat\tentailment\tentailment\n",
        "\t".join([*MNLI.split(), "sentence1", "sentence2"])
        + "\n0\t31\t31n\ttravel\t( a )\t( b )\t(R a)\t(R b)\tthe dog ran\tthe dog sat\n",
    ),
    "qnli": (
        "index\tquestion\tsentence\tlabel\n0\tis the cat good\tthe cat is good .\tentailment\n"
        "1\tis the dog good\tthe film .\tnot_entailment\n",
        "index\tquestion\tsentence\n0\tis the cat bad\tthe cat sat .\n",
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel\n0\tthe cat sat .\ta cat sat .\tentailment\n"
        "1\tthe cat\tdog\tnot_entailment\n",
        "index\tsentence1\tsentence2\n0\tthe dog .\ta dog .\n",
    ),
    "wnli": (
        "index\tsentence1\tsentence2\tlabel\n0\tthe cat sat\tcat sat\t1\n1\tthe dog\tcat sat\t0\n",
        "index\tsentence1\tsentence2\n0\tthe dog\tdog ran\n",
    ),
}
# Texts and label of the first row, label of the second, metrics, and the file of predictions.
EXPECTED = {
    "cola": ("the cat sat .", None, "1", "0", {"matthews"}, "CoLA"),
    "sst2": ("the film is good ", None, "1", "0", {"accuracy"}, "SST-2"),
    "mrpc": ("the cat sat", 'a "cat sat', "1", "0", {"f1", "accuracy"}, "MRPC"),
    "stsb": ("the cat sat", "a cat sat", "5.000", "0.250", {"pearson", "spearman"}, "STS-B"),
    "qqp": ("is the cat good", "is a cat good", "1", "0", {"f1", "accuracy"}, "QQP"),
    "mnli": ("the cat sat", "the cat ran", "neutral", "entailment", {"accuracy"}, "MNLI-m"),
    "qnli": ("is the cat good", "the cat is good .", *ENTAILMENT, {"accuracy"}, "QNLI"),
    "rte": ("the cat sat .", "a cat sat .", *ENTAILMENT, {"accuracy"}, "RTE"),
    "wnli": ("the cat sat", "cat sat", "1", "0", {"accuracy"}, "WNLI"),
}


def task_of(name, **changes):
    files = {"train": ["T"], "validation": ["V"], "output": "O"}
    return open_task(FinetuneSettings(task=name, model="M", **files, **changes))


def make_encoder(seq_len=40):
    return TextEncoder(parse_vocab(VOCAB, "vocab.txt"), UNCASED, seq_len)


def write(folder, name, text):
    (folder / name).write_text(text)
    return str(folder / name)


def read(task, folder, name, text, split="train"):
    return task.read(write(folder, name, text), split).examples


@pytest.mark.parametrize("name", FILES)
def test_files_as_distributed(name, tmp_path):
    task, (labelled, unlabelled) = task_of(name), FILES[name]
    first, second, *written, metrics, submitted = EXPECTED[name]
    train = task.read(write(tmp_path, "train.tsv", labelled), "train")
    examples = train.examples
    assert (examples[0].text, *examples[0].seconds) == (first, second)
    assert [example.label for example in examples] == written
    labels = task.find_labels(examples)
    encoded = task.encode(examples, labels, make_encoder(), "train")
    expected = [[float(each)] if name == "stsb" else [labels.index(each)] for each in written]
    assert [item.labels.tolist() for item in encoded.items] == expected
    predictions = [float(each) if name == "stsb" else each for each in written]
    assert set(task.score(examples, predictions)) == metrics
    assert task.score(examples, predictions)[task.main_metric] == pytest.approx(1.0)
    assert train.counts == ({"skipped_rows": 1} if name == "qqp" else {})
    test = task.read(write(tmp_path, "test.tsv", unlabelled), "test")
    assert task.encode(test.examples, labels, make_encoder(), "test").items[0].labels.tolist() == []
    files = task.prediction_files(str(tmp_path / "test.tsv"), test.examples, predictions[:1], {})
    assert files == {f"{submitted}.tsv": f"index\tprediction\n0\t{written[0]}\n"}


def test_scores_are_sent_between_0_and_5_and_mismatched_is_named(tmp_path):
    task = task_of("stsb")
    example = read(task, tmp_path, "test.tsv", FILES["stsb"][1], "test")
    written = task.prediction_files("test.tsv", example * 2, [-0.5, 5.25], {})["STS-B.tsv"]
    assert written.split()[2:] == ["0", "0.000", "0", "5.000"]
    names = ("test_matched.tsv", "test_mismatched.tsv.zst", "diagnostic.tsv")
    files = [task_of("mnli").prediction_files(f"glue/{name}", [], [], {}) for name in names]
    assert [*map(list, files)] == [["MNLI-m.tsv"], ["MNLI-mm.tsv"], ["AX.tsv"]]


def test_a_pair_is_encoded_as_bert_reads_it():
    task, encoder = task_of("rte"), make_encoder(9)
    rows = [
        PairExample("f:2", "0", "the cat sat", ("a dog",), "entailment"),
        PairExample("f:3", "1", "the cat sat very good .", ("a dog ran",), "not_entailment"),
        PairExample("f:4", "2", "", ("a",), "entailment"),
    ]
    encoded = task.encode(rows, task.find_labels(rows), encoder, "train")
    words = [[TOKENS[index] for index in item.sequences[0].input_ids] for item in encoded.items]
    assert words == [
        ["[CLS]", "the", "cat", "sat", "[SEP]", "a", "dog", "[SEP]"],
        ["[CLS]", "the", "cat", "sat", "[SEP]", "a", "dog", "ran", "[SEP]"],
        ["[CLS]", "[SEP]", "a", "[SEP]"],
    ]
    assert [item.sequences[0].segment_a_length for item in encoded.items] == [5, 5, 2]
    counts = {"truncated_examples": 1, "truncated_tokens": 3, "examples_with_empty_text": 1}
    assert encoded.counts == counts


def truncate_one_by_one(length_a, length_b, room):
    """google-research/bert run_classifier.py, _truncate_seq_pair."""
    while length_a + length_b > room:
        if length_a > length_b:
            length_a -= 1
        else:
            length_b -= 1
    return length_a, length_b


def test_pairs_are_cut_as_googles_program_cuts_them():
    encoders = {room: make_encoder(room + 3) for room in (2, 3, 6, 9)}
    for room, length_a, length_b in product(encoders, range(14), range(14)):
        a, b, num_removed = encoders[room].truncate(np.arange(length_a), np.arange(length_b))
        assert (len(a), len(b)) == truncate_one_by_one(length_a, length_b, room)
        assert num_removed == max(0, length_a + length_b - room)
        assert a.tolist() == list(range(len(a)))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rte", "index\tsentence1\n0\ta\n", "no column sentence2, label; the columns are ind"),
        ("cola", "gj\t1\t\ta b\n\ngj\t1\ta b\n", r":3: 3 columns, expected 4 \(source, label, m"),
        ("qqp", f"{QQP}1\t2\t3\ta\tb\t1\t9\n", ":2: 7 columns"),
        ("sst2", "sentence\tlabel\n", "has no rows"),
        ("sst2", "", "no column sentence, label; the columns are "),
    ],
)
def test_malformed_files(name, text, message, tmp_path):
    with pytest.raises(ValueError, match=rf"train\.tsv.*{message}"):
        read(task_of(name), tmp_path, "train.tsv", text)


@pytest.mark.parametrize(("name", "label", "message"), [
    ("rte", "maybe", r"dev\.tsv:3: label 'maybe', the labels are entailment, not_entailment"),
    ("sst2", "", r"dev\.tsv:3: label '', the labels are 0, 1"),
    ("stsb", "high", r"dev\.tsv:3: label 'high', expected a number"),
    ("stsb", "nan", r"dev\.tsv:3: label 'nan', expected a number"),
])  # fmt: skip
def test_unknown_labels(name, label, message, tmp_path):
    header, first, second, *_ = FILES[name][0].split("\n")
    second, task = "\t".join([*second.split("\t")[:-1], label]), task_of(name)
    rows = "\n".join([header, first, second])
    examples = read(task, tmp_path, "dev.tsv", rows, "validation")
    with pytest.raises(ValueError, match=message):
        task.encode(examples, task.find_labels(examples[:1]), make_encoder(), "validation")


def test_real_files(shared_data):
    task = task_of("sst2")
    train = task.read(str(shared_data / "data/sst2/train.tsv.zst"), "train").examples
    assert (len(train), {example.label for example in train}) == (67_349, {"0", "1"})
    rte = task_of("rte").read(str(shared_data / "data/rte/dev.tsv"), "validation").examples
    assert (len(rte), rte[0].id, rte[0].label) == (139, "0", "not_entailment")
