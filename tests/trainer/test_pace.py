"""Turns of ranks before a store that fails: they slow down together, recover, and never storm it."""

import random
from itertools import pairwise

import pytest

from tests.trainer.simulated_ranks import Simulation
from trainer.reading.rate_limit import (
    FIRST_SECONDS,
    FREE_SECONDS,
    MAX_SECONDS,
    RateLimit,
    make_rate_file,
)

NUM_NODES, ASKING = 256, 8


def a_pace(path=None, rank=0, num_ranks=1):
    return RateLimit(path, rank, num_ranks, random.Random(0).uniform)


def test_nothing_waits_where_nothing_fails():
    pace = a_pace()
    assert [pace.take_turn(now) for now in (5.0, 5.0, 5.0)] == [0.0] * 3
    pace.answered(5.0, 5.1)
    assert pace.interval == 0


def test_requests_that_fail_at_the_same_time_count_once():
    pace = a_pace()
    for _ in range(64):
        pace.failed(asked=5.0, now=6.0)
    assert pace.interval == FIRST_SECONDS
    for now in range(7, 100):
        pace.failed(asked=now - 0.5, now=now)
    assert pace.interval == MAX_SECONDS


def test_a_turn_is_taken_once():
    pace = a_pace()
    pace.failed(5.0, 6.0)
    pace.failed(6.5, 7.0)
    seconds = pace.take_turn(7.0)
    assert FIRST_SECONDS <= seconds <= 2 * FIRST_SECONDS
    assert pace.take_turn(7.0 + seconds) == 0
    assert pace.take_turn(7.0 + seconds) > 0


def test_answers_shrink_the_interval_until_all_is_free_again():
    pace, now = a_pace(), 100.0
    pace.failed(now, now)
    pace.failed(now, now)
    pace.answered(now - 1, now + 2)
    assert pace.interval == 2 * FIRST_SECONDS, "the request was made at another pace"
    seen = [pace.interval]
    while pace.interval:
        now += 2
        pace.answered(now - 0.1, now)
        seen.append(pace.interval)
    assert all(later < sooner for sooner, later in pairwise(seen))
    assert min(filter(None, seen)) >= FREE_SECONDS
    assert pace.take_turn(now) == 0


def test_processes_of_a_node_share_the_interval_and_the_turns(tmp_path):
    make_rate_file(tmp_path / "pace")
    one, other = a_pace(tmp_path / "pace"), a_pace(tmp_path / "pace")
    one.failed(5.0, 6.0)
    assert other.interval == FIRST_SECONDS
    turn = 6.0 + one.take_turn(6.0)
    assert other.take_turn(turn) == 0
    assert one.take_turn(turn) > 0
    make_rate_file(tmp_path / "pace")
    assert other.interval == FIRST_SECONDS, "whoever comes later leaves it as it is"


def test_a_pace_from_before_the_machine_started_again_is_forgotten(tmp_path):
    make_rate_file(tmp_path / "pace")
    a_pace(tmp_path / "pace").failed(1e6, 1e6)
    assert a_pace(tmp_path / "pace").take_turn(5.0) == 0
    assert a_pace(tmp_path / "pace").interval == 0


def test_a_file_of_another_size_is_made_anew(tmp_path):
    (tmp_path / "pace").write_bytes(b"1")
    make_rate_file(tmp_path / "pace")
    assert (tmp_path / "pace").stat().st_size == 24


def test_many_ranks_begin_one_after_another_and_few_at_once():
    assert [a_pace(None, rank, 128).take_turn(0.0) for rank in (0, 127)] == [0.0, 0.0]
    begin = sorted(a_pace(None, rank, 2048).take_turn(0.0) for rank in range(2048))
    assert begin == pytest.approx([rank / 3000 for rank in range(2048)])
    pace = a_pace(None, 0, 2048)
    assert pace.take_turn(0.0) == 0
    assert pace.take_turn(0.0) == pytest.approx(2048 / 3000)


def ask_without_end(simulation, seconds, every):
    """256 nodes whose ranks want something all the time, each the next a while after the last."""

    def asking(pace):
        def again():
            if simulation.now - 1000 < seconds:
                simulation.at(simulation.now + simulation.random.uniform(0, 2 * every), begin)

        def begin():
            simulation.request(pace, again)

        return begin

    for _ in range(NUM_NODES):
        pace = simulation.pace()
        for _ in range(ASKING):
            simulation.at(simulation.now + simulation.random.uniform(0, every), asking(pace))
    simulation.run()


def test_a_prefix_that_throttles_for_minutes_is_asked_for_what_it_gives(monkeypatch):
    """The store takes 300 requests a second for three minutes, a fifth of what the ranks would like."""
    simulation = Simulation(monkeypatch, lambda second: 300 if 30 <= second < 210 else 5500)
    ask_without_end(simulation, 270, every=ASKING * NUM_NODES / 1500)
    assert not simulation.gave_up
    asked, answered = (
        [counted[second] for second in range(270)]
        for counted in (simulation.asked, simulation.answered)
    )
    calm, throttled, after = slice(5, 30), slice(40, 210), slice(230, 260)
    assert sum(asked[throttled]) < 1.5 * sum(answered[throttled]), "mostly refused"
    assert sum(answered[throttled]) > 0.7 * 300 * 170, "they ask for less than they could have"
    assert max(asked[throttled]) < 2.5 * 300
    assert sum(answered[after]) / 30 > 0.9 * sum(answered[calm]) / 25, "they stay slow"


@pytest.mark.parametrize("minutes", [1, 4])
def test_after_an_outage_ranks_come_back_one_by_one(monkeypatch, minutes):
    simulation = Simulation(
        monkeypatch, lambda second: 0 if 10 <= second < 10 + 60 * minutes else 5500
    )
    ends = 10 + 60 * minutes
    ask_without_end(simulation, ends + 60, every=ASKING * NUM_NODES / 1500)
    assert not simulation.gave_up
    outage = [simulation.asked[second] for second in range(40, ends)]
    assert max(outage) < 120, (
        "a store that is down is asked by 256 nodes, each every 7 s or less often"
    )
    after = [simulation.asked[second] for second in range(ends, ends + 60)]
    assert max(after) < 1.1 * 1500, "never more than on a calm day"
    assert (
        sum(simulation.answered[second] for second in range(ends + 30, ends + 60)) > 0.9 * 1500 * 30
    )


def test_nobody_gives_up_before_the_patience_that_was_set(monkeypatch):
    simulation = Simulation(monkeypatch, lambda _: 0, budget_seconds=100.0)
    paces = [simulation.pace() for _ in range(3)]
    for pace in paces * 8:
        simulation.request(pace, lambda: None)
    simulation.run()
    assert len(simulation.gave_up) == 24
    assert all(100.0 <= seconds <= 100.1 for seconds, _ in simulation.gave_up)
    assert all("gave up after" in said and "503 SlowDown" in said for _, said in simulation.gave_up)
    assert sum(simulation.asked.values()) < 24 * 10
