"""A dataset that will not be what its maker wants says so while it is made."""

import json
import random

import pytest

from pipeline.stages.given_vocabulary import check_vocabulary
from tests.pipeline.programs import run
from tokenizer.vocab import SPECIAL_TOKENS, Vocabulary, parse_vocab
from tokenizer.word_rule import AS_THEY_STAND, CASED, UNCASED, WordRule

EVENTS = ("MCC=5411", "AMT_Q7", "CH:POS", "evt/login", "[C@@H]")
FLAGS = ("--passes", 1, "--workers", 1, "--seq_lens", 64, "--validation_fraction", 0)


def vocabulary(*tokens):
    return Vocabulary((*SPECIAL_TOKENS, "[unused0]", *tokens))


def test_entries_that_no_text_gives_are_refused():
    with pytest.raises(ValueError, match=r"5 of 5 entries can never be made, such as 'MCC=5411'"):
        check_vocabulary(vocabulary(*EVENTS), CASED, "v.txt")
    check_vocabulary(vocabulary(*EVENTS), AS_THEY_STAND, "v.txt")
    with pytest.raises(ValueError, match=r"v.txt: 1 of 1 entries can never be made, such as 'a b'"):
        check_vocabulary(vocabulary("a b"), AS_THEY_STAND, "v.txt")


def test_a_cased_vocabulary_of_lower_cased_text_is_refused():
    tokens = ("the", "##s", "Paris", "café")
    with pytest.raises(ValueError, match=r"2 of 4 entries have capitals.*--lower_case false"):
        check_vocabulary(vocabulary(*tokens), UNCASED, "v.txt")
    check_vocabulary(vocabulary(*tokens), CASED, "v.txt")


def test_a_lower_cased_vocabulary_of_text_with_capitals_is_said(capsys):
    check_vocabulary(vocabulary("the", "##s"), CASED, "v.txt")
    assert "no entry has a capital" in capsys.readouterr().out
    check_vocabulary(vocabulary("中", "##1"), CASED, "v.txt")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_released_vocabularies_go_with_their_own_text(shared_data, name, capsys):
    path = shared_data / f"data/bert_vocab/bert-base-{name}-vocab.txt"
    rule = WordRule(name == "uncased")
    check_vocabulary(parse_vocab(path.read_bytes(), name), rule, name)
    assert capsys.readouterr().out == ""


def write_documents(path, documents):
    path.write_text("".join(json.dumps({"text": "\n".join(each)}) + "\n" for each in documents))
    return path


def prose(rng, num_documents, num_lines, words=("cat", "dog", "sat", "ran")):
    return [
        [" ".join(rng.choices(words, k=8)) for _ in range(num_lines)] for _ in range(num_documents)
    ]


@pytest.mark.processes
def test_a_text_of_unknown_words_stops_before_shards(tmp_path, capsys):
    text = write_documents(tmp_path / "a.jsonl", prose(random.Random(1), 40, 6, ("żółw", "ran")))
    (tmp_path / "v.txt").write_text(vocabulary("ran", "cat").to_text())
    words = ("--input", text, "--vocab", tmp_path / "v.txt", "--output", tmp_path / "o", *FLAGS)
    assert run("build", *words, "--max_unknown", 0.2) == 2
    said = capsys.readouterr().err
    assert "% of the tokens are [UNK]: words such as 'zołw'" in said, said
    assert "with characters that no piece has: 'z', 'o', 'ł', 'w'" in said
    assert not (tmp_path / "o/train").exists()
    assert run("build", *words, "--max_unknown", 1) == 0
    assert "% of the tokens are [UNK]: words such as 'zołw'" in capsys.readouterr().out


@pytest.mark.processes
def test_documents_of_one_sentence_stop_before_shards(tmp_path, capsys):
    text = write_documents(tmp_path / "a.jsonl", prose(random.Random(1), 60, 1))
    words = ("--input", text, "--vocab_size", 100, "--output", tmp_path / "o", *FLAGS)
    assert run("build", *words) == 2
    assert "the documents hold 1.00 sentences on average" in capsys.readouterr().err
    assert run("build", *words, "--max_random_next", 1) == 0
    assert "100.0% of the second segments are random" in capsys.readouterr().out


@pytest.mark.processes
def test_sentences_longer_than_an_instance_are_not_published(tmp_path, capsys):
    rng = random.Random(1)
    long = [[" ".join(rng.choices(("cat", "dog"), k=90)) for _ in range(4)] for _ in range(30)]
    text = write_documents(tmp_path / "a.jsonl", long)
    words = ("--input", text, "--vocab_size", 100, "--output", tmp_path / "o", *FLAGS)
    assert run("build", *words) == 2
    assert "documents hold 4.0 sentences of 90 tokens on average" in capsys.readouterr().err
    assert not (tmp_path / "o/manifest.json").exists()
    assert run("build", *words, "--max_random_next", 1) == 0
    assert (tmp_path / "o/manifest.json").exists()
