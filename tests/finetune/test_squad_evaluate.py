"""Exact match, F1 and thresholds of SQuAD, by cases worked by hand."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.finetune.squad.evaluate import (
    Marks,
    apply_threshold,
    average,
    find_best_threshold,
    mark_v1,
    mark_v2,
    normalize_answer,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Normans", "normans"),
        ("a theatre in an anthem", "theatre in anthem"),
        ("U.S.A.", "usa"),
        ("(1895-1943),", "18951943"),
        ("rock 'n' roll", "rock n roll"),
        ("The", ""),
        ("the-end", "theend"),
        ("«Élan»\u00a0vital", "«élan» vital"),
        ("", ""),
    ],
)
def test_case_punctuation_articles_and_white_space_are_taken_off(text, expected):
    assert normalize_answer(text) == expected


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("the Denver Broncos!", ["Denver Broncos"], 1, 1),
        # 2 of 3 words right of 2: precision 2/3, recall 1.
        ("big Denver Broncos", ["Denver Broncos"], 0, 0.8),
        # A word counts as often as it is there: 1 of 2 and 1 of 1.
        ("no no", ["no"], 0, 2 / 3),
        ("Carolina", ["Denver Broncos", "Carolina Panthers", "Carolina"], 1, 1),
        # The best F1 may be of another answer than the best exact match.
        ("gold and black", ["black", "gold, black"], 0, 0.8),
        ("Paris", ["Rome", "Athens"], 0, 0),
    ],
)
def test_marks_that_both_evaluators_give(prediction, answers, exact, f1):
    assert mark_v1(prediction, answers) == Marks(exact, pytest.approx(f1))
    assert mark_v2(prediction, answers) == Marks(exact, pytest.approx(f1))


@pytest.mark.parametrize(
    ("prediction", "answers", "v1", "v2"),
    [
        # 1.1 knows no F1 of nothing; 2.0 passes over answers of which nothing is left.
        ("the", ["The", "A. The"], Marks(1, 0), Marks(1, 1)),
        ("", ["The"], Marks(1, 0), Marks(1, 1)),
        ("", ["Rome"], Marks(0, 0), Marks(0, 0)),
        ("the", ["The", "Rome"], Marks(1, 0), Marks(0, 0)),
    ],
)
def test_marks_that_the_evaluators_differ_in(prediction, answers, v1, v2):
    assert mark_v1(prediction, answers) == v1
    assert mark_v2(prediction, answers) == v2


def test_a_question_without_answer_wants_the_empty_one():
    assert mark_v2("", []) == Marks(1, 1)
    assert mark_v2("Rome", []) == Marks(0, 0)


def test_means_are_in_percent():
    assert average([Marks(1, 1), Marks(0, 0.5), Marks(0, 0)]) == {
        "exact": pytest.approx(100 / 3),
        "f1": pytest.approx(50),
    }


def test_questions_above_the_threshold_are_left_unanswered():
    marks = {"right": Marks(1, 1), "wrong": Marks(0, 0.5), "none": Marks(0, 0)}
    null_scores = {"right": 2.0, "wrong": 1.0, "none": 1.5}
    has_answer = {"right": True, "wrong": True, "none": False}
    assert apply_threshold(marks, null_scores, has_answer, 1.0) == {
        "right": Marks(0, 0),
        "wrong": Marks(0, 0.5),
        "none": Marks(1, 1),
    }


def test_the_best_threshold_worked_by_hand():
    null_scores = {"a": -3.0, "b": -1.0, "c": 0.5, "d": 2.0}
    has_answer = {"a": True, "b": False, "c": True, "d": False}
    # Answered up to a: 1 + b and d right by silence = 3; to b: 2; to c: 2.5; to d: 1.5.
    best = find_best_threshold(
        {"a": 1.0, "b": 0.0, "c": 0.5, "d": 0.0},
        dict.fromkeys("abcd", "x"),
        null_scores,
        has_answer,
    )
    assert (best.score, best.threshold) == (75.0, -3.0)
    # With c wholly right the scores are 3, 2, 3 and 2: of equal ones the first.
    best = find_best_threshold(
        {"a": 1.0, "b": 0.0, "c": 1.0, "d": 0.0},
        dict.fromkeys("abcd", "x"),
        null_scores,
        has_answer,
    )
    assert (best.score, best.threshold) == (75.0, -3.0)


def test_where_silence_is_best_the_threshold_lies_below_everything():
    best = find_best_threshold(
        {"a": 0.0, "b": 0.0}, {"a": "x", "b": "x"}, {"a": -5.0, "b": 1.0}, {"a": True, "b": False}
    )
    assert best.score == 50.0
    assert best.threshold < -5.0


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from([0.0, 0.25, 1.0]), st.integers(-3, 3)),
        min_size=1,
        max_size=12,
    )
)
def test_the_best_threshold_is_the_best_of_all(questions):
    keys = [str(number) for number in range(len(questions))]
    has_answer = {key: has for key, (has, _, _) in zip(keys, questions, strict=True)}
    marks = {
        key: Marks(0, mark if has else 0.0)
        for key, (has, mark, _) in zip(keys, questions, strict=True)
    }
    null_scores = {key: float(score) for key, (_, _, score) in zip(keys, questions, strict=True)}
    best = find_best_threshold(
        {key: each.f1 for key, each in marks.items()},
        dict.fromkeys(keys, "x"),
        null_scores,
        has_answer,
    )

    def mean_f1(threshold):
        return average(list(apply_threshold(marks, null_scores, has_answer, threshold).values()))[
            "f1"
        ]

    assert best.score == pytest.approx(mean_f1(best.threshold))
    assert best.score == pytest.approx(
        max(map(mean_f1, itertools.chain([-9.0], null_scores.values())))
    )
