"""Words that stand between blanks as they are: codes, events, sequences, segmented languages."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tokenizer.compiled import load
from tokenizer.compiled_encoder import CompiledEncoder
from tokenizer.encode import Encoder, LibraryEncoder
from tokenizer.export import tokenizer_config_json, tokenizer_json
from tokenizer.extend import extend_vocabulary
from tokenizer.learn import learn_vocabulary, learn_words
from tokenizer.vocab import SPECIAL_TOKENS, Vocabulary, parse_vocab
from tokenizer.word_rule import AS_THEY_STAND, WordRule
from tokenizer.words import count_words

EVENTS = "MCC=5411 AMT_Q7 CH:POS evt/login [C@@H] ICD10:E11.9"
PIECES = ["MCC=5411", "AMT_", "##Q7", "##Q", "c1ccccc1", "é", "e", "##\u0301", "中文", "#", "a"]
VOCAB = Vocabulary((*SPECIAL_TOKENS, *PIECES))


def encoders():
    library = LibraryEncoder(VOCAB, AS_THEY_STAND)
    module = load("tokenizer._matcher")
    if module is None:
        return [library]
    return [library, CompiledEncoder(module, VOCAB, AS_THEY_STAND, library.encode_sentences)]


def test_words_are_what_stands_between_blanks():
    assert AS_THEY_STAND.split(EVENTS) == EVENTS.split(" ")
    blanks = "\t\n\v\f\r \x85\xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000"
    assert AS_THEY_STAND.split(blanks.join("ab")) == ["a", "b"]
    assert AS_THEY_STAND.split("É\u200bx\x1cy\x00z \ufeffb 中文") == [
        "É\u200bx\x1cy\x00z",
        "\ufeffb",
        "中文",
    ]


def test_lower_case_is_refused():
    with pytest.raises(ValueError, match="give --lower_case false too"):
        WordRule(lower_case=True, words="whitespace")


def test_ids():
    texts = ["MCC=5411 AMT_Q7 unknown", "c1ccccc1\u3000é e\u0301", "MCC=54 AMT_", ""]
    ids, lengths = Encoder(VOCAB, AS_THEY_STAND).encode_sentences(texts)
    tokens = [VOCAB.tokens[index] for index in ids.tolist()]
    assert tokens == [
        *["MCC=5411", "AMT_", "##Q7", "[UNK]"],
        *["c1ccccc1", "é", "e", "##\u0301"],
        *["[UNK]", "AMT_"],
    ]
    assert lengths.tolist() == [4, 4, 2, 0]


def test_a_special_token_in_a_text_is_unknown():
    ids = Encoder(VOCAB, AS_THEY_STAND).encode("[MASK] a [CLS] [SEP]a [PAD] [UNK]")
    assert not set(ids.tolist()) & {VOCAB.mask_id, VOCAB.cls_id, VOCAB.sep_id, VOCAB.pad_id}
    tokens = [VOCAB.tokens[index] for index in ids.tolist()]
    assert tokens == ["[UNK]", "a", "[UNK]", "[UNK]", "[UNK]", "[UNK]"]


ALPHABET = "MC=541AT_Q7c1é#a \t\n\u3000\xa0\x00\x01\x03\x04\x1c\x85e\u0301中文[]SK\U0001f600"


@given(st.lists(st.text(st.sampled_from(ALPHABET), max_size=30), max_size=8))
def test_the_compiled_encoder_gives_the_librarys_ids(texts):
    expected_ids, expected_lengths = encoders()[0].encode_sentences(texts)
    for encoder in encoders()[1:]:
        ids, lengths = encoder.encode_sentences(texts)
        # What both leave to `Encoder`: special tokens.
        ids[np.isin(ids, range(len(SPECIAL_TOKENS)))] = VOCAB.unk_id
        assert ids.tolist() == expected_ids.tolist()
        assert lengths.tolist() == expected_lengths.tolist()


def test_words_are_counted_as_they_stand():
    counts = count_words(["a B\na [MASK] a,b", "É"], AS_THEY_STAND)
    assert counts == {"a": 2, "B": 1, "[MASK]": 1, "a,b": 1, "É": 1}


def test_whole_words_by_count_then_by_code_points():
    words = ["b", "a", "[MASK]", "##x", "[unused3]", "rare", "y" * 201]
    vocab = learn_words(words, [5, 5, 9, 9, 9, 1, 9], vocab_size=8, num_unused=1)
    assert vocab.tokens == ("[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b")
    assert Encoder(vocab, AS_THEY_STAND).encode("a b rare ab").tolist() == [6, 7, 2, 2]


def test_pieces_are_learned_inside_words_that_look_like_continuations_and_specials():
    words = ["##ab", "##", "#", "[MASK]x", "[MASK]", "abab", "ab#"]
    vocab = learn_vocabulary(words, [9, 9, 9, 9, 9, 3, 1], vocab_size=100)
    assert parse_vocab(vocab.to_text().encode(), "vocab.txt") == vocab  # no piece is there twice
    assert {"abab", "ab#", "#"} <= {*vocab.tokens}


def test_a_vocabulary_is_extended_by_words_that_stand():
    extended = extend_vocabulary(
        VOCAB, ["CH:POS", "##a"], [7, 7], len(VOCAB) + 20, 0, AS_THEY_STAND
    )
    assert extended.tokens[: len(VOCAB)] == VOCAB.tokens
    assert Encoder(extended, AS_THEY_STAND).encode("CH:POS").tolist() == [extended.ids["CH:POS"]]


def test_transformers_gives_the_same_ids(tmp_path):
    AutoTokenizer = pytest.importorskip("transformers").AutoTokenizer

    rng = np.random.default_rng(3)
    words = ["MCC=5411", "AMT_Q7", "CH:POS", "c1ccccc1", "中文", "a", "É", "x" * 250, "e\u0301"]
    lines = [" ".join(rng.choice(words, size=8)) for _ in range(10_000)]
    counts = count_words(lines, AS_THEY_STAND)
    vocab = learn_vocabulary(list(counts), list(counts.values()), 60)
    (tmp_path / "tokenizer.json").write_text(tokenizer_json(vocab, AS_THEY_STAND))
    config = tokenizer_config_json(vocab, AS_THEY_STAND, max_length=512)
    (tmp_path / "tokenizer_config.json").write_text(config)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids, lengths = Encoder(vocab, AS_THEY_STAND).encode_sentences(lines)
    found = tokenizer(lines, add_special_tokens=False)["input_ids"]
    assert [len(each) for each in found] == lengths.tolist()
    assert np.concatenate(found).tolist() == ids.tolist()
    steps = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert type(steps.pre_tokenizer).__name__ == "WhitespaceSplit"
    assert steps.normalizer is None
