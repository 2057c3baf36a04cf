import pytest

from tokenizer.encode import Encoder
from tokenizer.learn import learn_vocabulary

TEXTS = ["The cat sat on the mat. [MASK] cats [SEP] sat!", "Ünïcode 中国 and the mats of cats\n", ""] * 20


def test_the_layout_is_berts():
    vocab = learn_vocabulary(TEXTS, vocab_size=60, lower_case=True, num_unused=2)
    assert len(vocab) == 60
    assert vocab.tokens[:7] == ("[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    assert "cat" in vocab.ids
    assert len(set(vocab.tokens)) == 60


def test_case_is_kept_or_dropped():
    assert "T" not in learn_vocabulary(TEXTS, 60, lower_case=True).ids
    assert "T" in learn_vocabulary(TEXTS, 60, lower_case=False).ids


def test_special_strings_in_texts_are_plain_text():
    vocab = learn_vocabulary(["[MASK] [SEP] [PAD]"] * 50, vocab_size=500, lower_case=False)
    assert vocab.tokens.index("[MASK]") == 4
    assert "MASK" in vocab.ids
    mask = [vocab.ids[token] for token in ("[", "MASK", "]")]
    assert Encoder(vocab, lower_case=False).encode("[MASK]").tolist() == mask


def test_a_small_text_gives_fewer_tokens():
    assert 5 < len(learn_vocabulary(iter(TEXTS), vocab_size=5000, lower_case=True)) < 200


def test_nothing_but_specials_from_nothing():
    assert len(learn_vocabulary([], vocab_size=100, lower_case=True)) == 5


def test_a_size_below_the_alphabet_is_refused():
    with pytest.raises(ValueError, match=r"vocab_size=20 is too small: 7 special and unused tokens .* make \d+"):
        learn_vocabulary(TEXTS, vocab_size=20, lower_case=True, num_unused=2)


def test_nothing_is_printed(capfd):
    learn_vocabulary(TEXTS, vocab_size=60, lower_case=True)
    assert capfd.readouterr() == ("", "")
