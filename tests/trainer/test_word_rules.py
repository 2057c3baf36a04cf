"""A model to start from reads text as the dataset does, or is refused."""

import json

import pytest

from tokenizer.export import tokenizer_json
from tokenizer.vocab import SPECIAL_TOKENS, Vocabulary
from tokenizer.word_rule import AS_THEY_STAND, CASED, UNCASED
from trainer.conversion.word_rules import guess_word_rule, refuse_other_words, said_word_rule

VOCAB = Vocabulary((*SPECIAL_TOKENS, "a"))


def folder_of(path, rule):
    path.mkdir()
    (path / "tokenizer.json").write_text(tokenizer_json(VOCAB, rule))
    return str(path)


@pytest.mark.parametrize("rule", [UNCASED, CASED, AS_THEY_STAND])
def test_an_exported_tokenizer_says_its_rule(rule):
    assert said_word_rule(json.loads(tokenizer_json(VOCAB, rule)), {}) == rule


def test_settings_say_it_where_there_is_no_tokenizer():
    assert said_word_rule(None, {"do_lower_case": False}) == CASED
    assert said_word_rule(None, {}) is None
    assert said_word_rule({"normalizer": {"type": "Sequence"}}, {}) is None


def test_a_vocabulary_without_capitals_suggests_lower_case():
    assert guess_word_rule(b"[PAD]\n[UNK]\na\n##b\n") == UNCASED
    assert guess_word_rule(b"[PAD]\n[UNK]\na\n##B\n") == CASED


@pytest.mark.parametrize(
    ("theirs", "ours", "said"),
    [
        (CASED, UNCASED, "is cased, the dataset's is lower-cased.*--lower_case false --words bert"),
        (UNCASED, CASED, "is lower-cased, the dataset's is cased.*--lower_case true --words bert"),
        (AS_THEY_STAND, CASED, "is cut at blanks alone.*--lower_case false --words whitespace"),
    ],
)
def test_other_words_are_refused(tmp_path, theirs, ours, said):
    model = folder_of(tmp_path / "model", theirs)
    with pytest.raises(ValueError, match=said):
        refuse_other_words(model, folder_of(tmp_path / "run", ours))


def test_equal_and_unsaid_rules_are_taken(tmp_path):
    run = folder_of(tmp_path / "run", UNCASED)
    (tmp_path / "silent").mkdir()
    refuse_other_words(str(tmp_path / "silent"), run)
    refuse_other_words(folder_of(tmp_path / "model", UNCASED), run)
