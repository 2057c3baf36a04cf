"""Pieces and their places, windows of long contexts, and answers out of logits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer.encode import Encoder
from tokenizer.vocab import parse_vocab
from trainer.finetune.squad.items import Window, cut_windows, find_best_windows, find_pieces
from trainer.finetune.squad.task import find_best_span
from trainer.finetune.text import TextEncoder

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *"()-.,", "cafe", "the"]
TOKENS += [f"##{letter}" for letter in LETTERS] + ["ᄒ", "##ᅡ", "##ᆫ", "東"]
VOCAB = parse_vocab("\n".join(TOKENS).encode(), "vocab.txt")
TEXTS = st.text(
    st.one_of(
        st.sampled_from("aAbcé É\u0301\u200b\ufeff\x00\t\n\u00a0東京한국İß(-).,[MASK]"),
        st.characters(exclude_categories=("Cs",)),
    ),
    max_size=40,
)


def pieces_of(texts, vocab=VOCAB, lower_case=True):
    return find_pieces(texts, TextEncoder(vocab, lower_case, 384))


@pytest.mark.parametrize("lower_case", [True, False])
@settings(deadline=None)
@given(texts=st.lists(TEXTS, max_size=3))
def test_ids_are_the_encoders_and_places_are_in_order(lower_case, texts):
    encoder = Encoder(VOCAB, lower_case)
    for text, pieces in zip(texts, pieces_of(texts, VOCAB, lower_case), strict=True):
        assert pieces.ids.tolist() == encoder.encode(text).tolist()
        assert pieces.ids.dtype == encoder.encode(text).dtype
        starts, ends = pieces.starts.tolist(), pieces.ends.tolist()
        assert all(0 <= start < end <= len(text) for start, end in zip(starts, ends, strict=True))
        assert (starts, ends) == (sorted(starts), sorted(ends))


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("The Café", ["The", "Café"]),
        ("x cafe\u0301.", ["x", "cafe\u0301", "."]),
        ("ca\u200bfe", ["ca\u200bfe"]),
        ("\ufeffthe (a-b)", ["the", "(", "a", "-", "b", ")"]),
        ("東the", ["東", "the"]),
        ("한a", ["한", "한", "한", "a"]),
        ("the ₿ a", ["the", "₿", "a"]),
    ],
)
def test_pieces_stand_for_the_text_as_it_was_written(text, places):
    (pieces,) = pieces_of([text])
    spans = zip(pieces.starts, pieces.ends, strict=True)
    assert [text[start:end] for start, end in spans] == places


@pytest.mark.parametrize(
    ("answer", "span"),
    [("(a-b)", (1, 5)), ("a", (2, 2)), ("Café", (6, 6)), ("afé", (6, 6)), ("-b) C", (3, 6))],
)
def test_the_pieces_of_an_answer(answer, span):
    text = "The (a-b) Café the"
    (pieces,) = pieces_of([text])
    start = text.index(answer)
    assert pieces.find_span(start, start + len(answer)) == span


def test_windows_of_the_reference():
    assert cut_windows(10, 10, 4) == [Window(0, 10)]
    assert cut_windows(11, 10, 4) == [Window(0, 10), Window(4, 7)]
    assert cut_windows(18, 10, 4) == [Window(0, 10), Window(4, 10), Window(8, 10)]
    assert cut_windows(18, 5, 9) == [Window(0, 5), Window(5, 5), Window(10, 5), Window(15, 3)]
    assert cut_windows(0, 10, 4) == []


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 25))
def test_every_piece_is_read_and_best_in_one_window(num_pieces, room, stride):
    windows = cut_windows(num_pieces, room, stride)
    assert max(window.length for window in windows) <= room
    best = find_best_windows(windows, num_pieces)
    for piece, chosen in enumerate(best.tolist()):
        scores = [
            min(piece - window.start, window.start + window.length - 1 - piece)
            + 0.01 * window.length
            if window.start <= piece < window.start + window.length
            else -1
            for window in windows
        ]
        assert scores[chosen] == max(scores)
        assert scores.index(max(scores)) == chosen


LOGITS = st.integers(-4, 4).map(float)


@given(st.data(), st.integers(1, 9), st.integers(1, 5))
def test_the_best_span_is_the_best_of_all(data, num_pieces, max_pieces):
    logits = st.lists(LOGITS, min_size=num_pieces, max_size=num_pieces)
    start, end = (np.array(data.draw(logits), np.float32) for _ in range(2))
    flags = st.lists(st.booleans(), min_size=num_pieces, max_size=num_pieces)
    may_start = np.array(data.draw(flags))
    score, *span = find_best_span(start, end, may_start, max_pieces)
    every = {
        (first, last): float(start[first] + end[last])
        for first in range(num_pieces)
        for last in range(first, min(num_pieces, first + max_pieces))
        if may_start[first]
    }
    assert score == max(every.values(), default=-np.inf)
    assert not every or tuple(span) == max(every, key=every.__getitem__)
