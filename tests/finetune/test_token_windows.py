"""Sentences to windows of words: nothing lost, nothing twice."""

from hypothesis import given
from hypothesis import strategies as st

from trainer.finetune.tokens.windows import Window, cut_windows


def test_a_sentence_that_fits_is_one_window():
    assert cut_windows([1, 2, 1], room=4, context=1) == [Window(0, 3, 0, 3)]


def test_neighbours_share_words_that_one_of_them_predicts():
    assert cut_windows([1] * 10, room=6, context=2) == [
        Window(0, 6, 0, 4),
        Window(2, 8, 4, 6),
        Window(4, 10, 6, 10),
    ]


def test_a_word_that_fills_the_window_has_no_context():
    assert cut_windows([2, 4, 2], room=4, context=1) == [
        Window(0, 1, 0, 1),
        Window(1, 2, 1, 2),
        Window(2, 3, 2, 3),
    ]


@given(
    st.integers(2, 12).flatmap(
        lambda room: st.tuples(st.just(room), st.lists(st.integers(1, room), min_size=1))
    )
)
def test_every_word_is_predicted_once_and_read_in_order(drawn):
    room, num_pieces = drawn
    context = room // 4
    windows = cut_windows(num_pieces, room, context)
    predicted = [
        word for window in windows for word in range(window.predicted_from, window.predicted_to)
    ]
    assert predicted == list(range(len(num_pieces)))
    for window in windows:
        assert window.first <= window.predicted_from < window.predicted_to <= window.last
        assert sum(num_pieces[window.first : window.last]) <= room
        assert sum(num_pieces[window.first : window.predicted_from]) <= context
        assert window.first == 0 or window.predicted_from > 0
