"""Exact match, F1 and thresholds of SQuAD, by cases worked by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.finetune.squad import evaluate
from trainer.finetune.squad.evaluate import Judged, Marks, find_threshold, mark_v1, mark_v2

QUESTION = st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.integers(-3, 3), st.booleans())


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
    assert evaluate.normalize_answer(text) == expected


@pytest.mark.parametrize(
    ("prediction", "answers", "v1", "v2"),
    [
        ("the Denver Broncos!", ["Denver Broncos"], (1, 1), (1, 1)),
        # 2 of 3 words right of 2: precision 2/3, recall 1.
        ("big Denver Broncos", ["Denver Broncos"], (0, 0.8), (0, 0.8)),
        # A word counts as often as it is there: 1 of 2 and 1 of 1.
        ("no no", ["no"], (0, 2 / 3), (0, 2 / 3)),
        ("Carolina", ["Denver Broncos", "Carolina Panthers", "Carolina"], (1, 1), (1, 1)),
        # The best F1 may be of another answer than the best exact match.
        ("gold and black", ["black", "gold, black"], (0, 0.8), (0, 0.8)),
        ("Paris", ["Rome", "Athens"], (0, 0), (0, 0)),
        # 1.1 knows no F1 of nothing; 2.0 passes over answers of which nothing is left.
        ("the", ["The", "A. The"], (1, 0), (1, 1)),
        ("", ["The"], (1, 0), (1, 1)),
        ("", ["Rome"], (0, 0), (0, 0)),
        ("the", ["The", "Rome"], (1, 0), (0, 0)),
    ],
)
def test_marks_of_both_evaluators(prediction, answers, v1, v2):
    assert mark_v1(prediction, answers) == pytest.approx(v1)
    assert mark_v2(prediction, answers) == pytest.approx(v2)


def test_a_question_without_answer_wants_the_empty_one():
    assert (mark_v2("", []), mark_v2("Rome", [])) == (Marks(1, 1), Marks(0, 0))


def judged_of(*questions):
    """(F1, null score, whether there is an answer), all with a text."""
    return [Judged(Marks(0, f1), score, has, True) for f1, score, has in questions]


def test_questions_above_the_threshold_are_left_unanswered():
    judged = judged_of((1, 2.0, True), (0.5, 1.0, True), (0, 1.5, False))
    assert evaluate.apply_threshold(judged, 1.0) == [Marks(0, 0), Marks(0, 0.5), Marks(1, 1)]


# Answered up to a: 1 + b and d right by silence = 3; to b: 2; to c: 2.5; to d: 1.5. With c wholly
# right the scores are 3, 2, 3 and 2: of equal ones the first.
@pytest.mark.parametrize("f1_of_c", [0.5, 1.0])
def test_the_best_threshold_worked_by_hand(f1_of_c):
    judged = judged_of((1, -3.0, True), (0, -1.0, False), (f1_of_c, 0.5, True), (0, 2.0, False))
    assert find_threshold(judged) == -2.0  # halfway to the next null score


@given(st.lists(QUESTION, min_size=1, max_size=12))
def test_the_best_threshold_is_the_best_of_all(questions):
    judged = judged_of(*((f1 if has else 0.0, score, has) for f1, score, has in questions))
    thresholds = [find_threshold(judged), -9.0, *(each.null_score for each in judged)]
    means = [
        evaluate.average_marks(evaluate.apply_threshold(judged, each))["f1"] for each in thresholds
    ]
    assert means[0] == pytest.approx(max(means))
