"""A released vocabulary, extended by a domain's pieces."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenizer.encode import Encoder
from tokenizer.extend import extend_vocabulary, is_unused, tokens_per_word
from tokenizer.vocab import CONTINUATION, SPECIAL_TOKENS, Vocabulary
from tokenizer.word_rule import UNCASED
from tokenizer.wordpiece import split_piece

LETTERS = "abcdefghijklmnopqrstuvwxyz"
CONTINUING = [f"##{letter}" for letter in LETTERS]
UNUSED = ["[unused0]", "[unused1]", "[unused2]"]
OLD = Vocabulary(
    ("[PAD]", *UNUSED, *SPECIAL_TOKENS[1:], *LETTERS, *CONTINUING, "he", "##pat", "##it", "##is")
)


def extend(counts, vocab_size=0, num_unused=0, old=OLD):
    return extend_vocabulary(old, list(counts), list(counts.values()), vocab_size, num_unused)


def test_what_saves_most_takes_the_unused_places_and_then_new_lines():
    # The whole word is four pieces and saves 90 tokens; the others are three and save 16 each.
    new = extend({"hepatitis": 30, "xitis": 8, "yitis": 8}, vocab_size=len(OLD) + 1)
    assert new.tokens[1:4] == ("hepatitis", "xitis", "yitis")
    assert new.tokens[4:] == OLD.tokens[4:]


def test_pieces_that_only_lead_to_longer_ones_are_left_out():
    new = extend({"hepatitis": 30})
    assert new.tokens[1:4] == ("hepatitis", "[unused1]", "[unused2]")
    assert len(new) == len(OLD)


def test_the_last_unused_stay_where_that_is_asked():
    words = {f"{a}{b}{c}": 5 for a in "abc" for b in "xyz" for c in "pqr"}
    new = extend(words, vocab_size=len(OLD) + 4, num_unused=2)
    assert [token for token in new.tokens if is_unused(token)] == ["[unused1]", "[unused2]"]
    assert len(new) == len(OLD) + 4


def test_a_character_that_is_missing_makes_its_words_readable():
    new = extend({"β": 50, "aβ": 9, "βγ": 9})
    assert new.tokens[1] == "β"
    assert {"aβ", "βγ"} == {*new.tokens[2:4]}
    assert tokens_per_word(new, ["β", "aβ", "βγ"], [1, 1, 1], UNCASED) == 1
    assert not (Encoder(new, UNCASED).encode("β aβ βγ") == new.unk_id).any()


def test_nothing_is_added_without_words_or_room_and_long_words_are_left_out():
    assert extend({}) == OLD
    assert extend({"a" * 201: 9}) == OLD
    assert extend({"hepatitis": 9}, num_unused=3) == OLD


def test_a_piece_is_cut_where_it_stands():
    assert split_piece("hepat", OLD) == ["he", "##pat"]
    assert split_piece("##hepat", OLD) == ["##h", "##e", "##pat"]
    assert split_piece("##", OLD) == split_piece("β", OLD) == ["[UNK]"]


@given(
    st.dictionaries(
        st.text("abcжβ", min_size=1, max_size=9), st.integers(1, 9), min_size=1, max_size=60
    ),
    st.integers(0, 30),
    st.randoms(use_true_random=False),
)
def test_old_pieces_stay_and_the_order_of_words_does_not_matter(counts, more, random):
    new = extend(counts, vocab_size=len(OLD) + more)
    assert len(new) <= len(OLD) + more
    assert len({*new.tokens}) == len(new)
    places = zip(OLD.tokens, new.tokens, strict=False)
    assert all(before == after or is_unused(before) for before, after in places)
    added = {*new.tokens} - {*OLD.tokens}
    assert all(piece.removeprefix(CONTINUATION) in "\n".join(counts) for piece in added)
    shuffled = list(counts.items())
    random.shuffle(shuffled)
    assert extend(dict(shuffled), vocab_size=len(OLD) + more) == new
    known = [word for word in counts if OLD.unk_id not in Encoder(OLD, UNCASED).encode(word)]
    if known:
        before, after = (
            tokens_per_word(v, known, [counts[w] for w in known], UNCASED) for v in (OLD, new)
        )
        assert after <= before + 1e-9


def test_counts_weigh_the_mean():
    assert np.isclose(tokens_per_word(OLD, ["he", "xy"], [3, 1], UNCASED), 1.25)
