"""Requests go several at once, in order, and never far ahead of whoever takes what they bring."""

import threading

import pytest

from pipeline.storage.ahead import map_ahead


def test_results_come_in_order_from_several_threads_at_once():
    meeting = threading.Barrier(8, timeout=60)  # which none passes before eight are there

    def answer(number):
        meeting.wait()
        return number

    assert list(map_ahead(answer, range(64), at_once=8)) == list(range(64))


def test_no_more_than_twice_as_many_wait_to_be_taken():
    asked = []
    results = map_ahead(asked.append, iter(range(1000)), at_once=4)
    for taken in range(1, 100):
        next(results)
        assert len(asked) < taken + 8
    results.close()


def test_an_error_comes_in_its_turn_and_ends_it():
    results = map_ahead(lambda number: 1 // (number - 3), range(1000), at_once=2)
    assert [next(results) for _ in range(3)] == [-1, -1, -1]
    with pytest.raises(ZeroDivisionError):
        next(results)
