"""Metrics against numbers worked by hand."""

import pytest

from trainer.finetune.measures import accuracy, f1, macro_f1, matthews, pearson, spearman

FOUND = ["1", "1", "1", "0", "0", "1"]
EXPECTED = ["1", "0", "1", "0", "1", "1"]


def test_worked_by_hand():
    # 3 true positives, 1 false positive, 1 false negative, 1 true negative.
    assert accuracy(FOUND, EXPECTED) == pytest.approx(4 / 6)
    assert f1(FOUND, EXPECTED, "1") == pytest.approx(2 * 3 / (4 + 4))
    assert f1(FOUND, EXPECTED, "0") == pytest.approx(2 * 1 / (2 + 2))
    assert macro_f1(FOUND, EXPECTED) == pytest.approx((0.75 + 0.5) / 2)
    # 3 by 1 less 1 by 1, over the root of 4 by 4 by 2 by 2.
    assert matthews(FOUND, EXPECTED) == pytest.approx(2 / 8)


def test_matthews_of_three_classes_by_hand():
    found, expected = ["a", "b", "c", "a"], ["a", "b", "b", "c"]
    # Gorodkin: (c * s - sum p t) / sqrt((s^2 - sum p^2) (s^2 - sum t^2)), c = 2 right of s = 4.
    right = 2 * 4 - (2 * 1 + 1 * 2 + 1 * 1)
    assert matthews(found, expected) == pytest.approx(right / ((16 - 6) * (16 - 6)) ** 0.5)


def test_one_class_on_one_side_correlates_with_nothing():
    assert matthews(["1", "1"], ["0", "1"]) == 0.0
    assert f1(["0", "0"], ["0", "0"], "1") == 0.0
    assert pearson([1.0, 1.0], [0.0, 2.0]) == 0.0


def test_correlations_by_hand():
    found, expected = [1.0, 2.0, 3.0, 10.0], [2.0, 1.0, 3.0, 4.0]
    # Deviations -3 -2 -1 6 and -0.5 -1.5 0.5 1.5: products are 13 in sum, squares 50 and 5.
    assert pearson(found, expected) == pytest.approx(13 / 250**0.5)
    # Ranks 1 2 3 4 and 2 1 3 4: 1 - 6 * 2 / (4 * 15).
    assert spearman(found, expected) == pytest.approx(0.8)
    # Equal values share rank 1.5; ranks 1.5 1.5 3 against 1 2 3: deviations -0.5 -0.5 1 and -1 0 1.
    assert spearman([5.0, 5.0, 9.0], [1.0, 2.0, 3.0]) == pytest.approx(1.5 / (1.5 * 2) ** 0.5)
