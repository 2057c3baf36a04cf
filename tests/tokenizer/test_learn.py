from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenizer.encode import Encoder
from tokenizer.learn import learn_vocabulary
from tokenizer.vocab import CLS, CONTINUATION, MASK, PAD, SEP, SPECIAL_TOKENS, UNK
from tokenizer.word_rule import CASED, WordRule
from tokenizer.words import count_words

CATS = "The cat sat on the mat. [MASK] cats [SEP] sat!"
TEXTS = [CATS, "Ünïcode 中国 and the mats of cats\n", ""] * 20
LOW_PIECES = "d e i l n o r s t w ##d ##e ##i ##o ##r ##s ##t ##w"
LOW_MERGES = "##er ##ow low ##ew ##ewer newer ##der ##ider wider ##es ##est lowest"
LOW = {"low": 5, "lowest": 2, "newer": 6, "wider": 3}


def learn_from(texts, vocab_size, lower_case, num_unused=0):
    counts = count_words(texts, WordRule(lower_case))
    return learn_vocabulary(list(counts), list(counts.values()), vocab_size, num_unused)


def learn_slowly(word_counts, vocab_size):
    """The readable learner: every pair counted anew before every merge."""
    split = {word: (word[0], *(CONTINUATION + c for c in word[1:])) for word in word_counts}
    alphabet = {character for word in word_counts for character in word}
    continuing = {piece for pieces in split.values() for piece in pieces[1:]}
    tokens = [PAD, UNK, CLS, SEP, MASK, *sorted(alphabet), *sorted(continuing)]
    while len(tokens) < vocab_size:
        pairs = Counter()
        for word, pieces in split.items():
            for pair in pairwise(pieces):
                pairs[pair] += word_counts[word]
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merged = best[0] + best[1].removeprefix(CONTINUATION)
        if merged not in tokens:
            tokens.append(merged)
        split = {word: merge_pair(pieces, best, merged) for word, pieces in split.items()}
    return tuple(tokens)


def merge_pair(pieces, pair, merged):
    """From left to right: of `##a ##a ##a` the first two."""
    result, index = [], 0
    while index < len(pieces):
        found = pieces[index : index + 2] == pair
        result.append(merged if found else pieces[index])
        index += 2 if found else 1
    return tuple(result)


def test_an_example_worked_by_hand():
    # ##e ##r 9; then l ##o and ##o ##w 7 each, "#" is before "l"; l ##ow 7; then ##e ##w 6 ...
    pieces, merges = LOW_PIECES.split(), LOW_MERGES.split()
    for num_merges in (0, 3, len(merges)):
        vocab = learn_vocabulary(list(LOW), list(LOW.values()), 5 + len(pieces) + num_merges)
        assert vocab.tokens == (*SPECIAL_TOKENS, *pieces, *merges[:num_merges])
    assert learn_vocabulary([], [], 100).tokens == SPECIAL_TOKENS
    expected = (*SPECIAL_TOKENS, *pieces, *merges)
    assert learn_vocabulary(list(LOW), list(LOW.values()), 1000).tokens == expected


def test_overlapping_pairs_are_merged_from_the_left():
    # Of three ##a the first two become ##aa; then two pairs occur once, and "##" is before "x".
    learned = learn_vocabulary(["xaaa"], [1], 100).tokens[5:]
    assert " ".join(learned) == "a x ##a ##aa ##aaa xaaa"


@given(
    st.one_of(
        st.dictionaries(
            st.text("ab", min_size=1, max_size=12), st.integers(1, 9), min_size=1, max_size=30
        ),
        st.dictionaries(
            st.text("abcé中", min_size=1, max_size=7), st.integers(1, 3), min_size=1, max_size=60
        ),
    ),
    st.integers(15, 120),
    st.randoms(use_true_random=False),
)
def test_the_fast_learner_is_the_readable_one(word_counts, vocab_size, rng):
    words = list(word_counts)
    rng.shuffle(words)
    found = learn_vocabulary(words, [word_counts[word] for word in words], vocab_size)
    assert found.tokens == learn_slowly(word_counts, vocab_size)


def test_the_layout_is_berts():
    vocab = learn_from(TEXTS, vocab_size=60, lower_case=True, num_unused=2)
    assert len(vocab) == len(set(vocab.tokens)) == 60
    specials = "[PAD] [unused0] [unused1] [UNK] [CLS] [SEP] [MASK]"
    assert " ".join(vocab.tokens[:7]) == specials
    assert "cat" in vocab.ids


def test_the_alphabet_is_limited_by_frequency_then_code_point():
    words, counts = ["aab", "c", "dd", "da", "中"], [2, 3, 1, 1, 9]
    # 中 9, a 5, then c and d 3: c. With d and b go aab, dd, da and every continuing piece.
    assert learn_vocabulary(words, counts, 50, alphabet_size=3).tokens[5:] == ("a", "c", "中")


def test_words_too_long_for_any_encoder_are_left_out():
    assert learn_vocabulary(["x" * 201, "ab"], [50, 1], 50).tokens[5:] == ("a", "b", "##b", "ab")
    assert "x" * 200 in learn_vocabulary(["x" * 200, "ab"], [50, 1], 500).ids


def test_special_strings_in_texts_are_plain_text():
    vocab = learn_from(["[MASK] [SEP] [PAD]"] * 50, vocab_size=500, lower_case=False)
    assert vocab.tokens.index("[MASK]") == 4
    assert "MASK" in vocab.ids
    mask = [vocab.ids[token] for token in ("[", "MASK", "]")]
    assert Encoder(vocab, CASED).encode("[MASK]").tolist() == mask


def test_a_size_below_the_alphabet_is_refused():
    said = r"vocab_size=20 is too small: 7 special and unused tokens .* make \d+"
    with pytest.raises(ValueError, match=said):
        learn_from(TEXTS, vocab_size=20, lower_case=True, num_unused=2)
