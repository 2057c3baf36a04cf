"""Turns of ranks before a store that fails: they slow down together, and recover."""

import heapq
import random
from collections import Counter
from itertools import count

import pytest

from pipeline.storage import faults
from trainer.stream.reading import ranged_read
from trainer.stream.reading.ranged_read import Attempts, ShardReadError
from trainer.stream.reading.rate_limit import FIRST_SECONDS, RateLimit, make_rate_file
from trainer.stream.reading.settings import Reading

NUM_NODES, ASKING = 256, 8


class Simulation:
    """A clock, and a store that answers 503 above `limit(second)` requests in a second."""

    def __init__(self, monkeypatch, limit):
        self.now, self.limit = 1000.0, limit
        self.asked, self.answered, self.gave_up = Counter(), Counter(), []
        self.random = random.Random(0)
        self._events, self._number = [], count()
        monkeypatch.setattr(ranged_read, "time", self)
        monkeypatch.setattr(faults, "SystemRandom", lambda: self.random)

    def monotonic(self):
        return self.now

    def at(self, when, event):
        heapq.heappush(self._events, (when, next(self._number), event))

    def run(self):
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def request(self, pace, done):
        """Asks for something until it is there, as `ranged_read.retry` does, then calls done()."""
        attempts = Attempts("it", Reading(budget_seconds=300.0), None, pace)

        def go_on():
            if seconds := attempts.seconds_to_wait():
                self.at(self.now + seconds, go_on)
                return
            attempts.begin()
            second = int(self.now - 1000)
            self.asked[second] += 1
            is_answered = self.asked[second] <= self.limit(second)
            self.answered[second] += is_answered
            self.at(self.now + 0.03, lambda: come_back(is_answered))

        def come_back(is_answered):
            if is_answered:
                attempts.answered()
                done()
                return
            try:
                attempts.failed(Exception("503 SlowDown"))
            except ShardReadError as error:
                self.gave_up.append(error)
            else:
                go_on()

        go_on()


def a_pace(path=None, rank=0, num_ranks=1):
    return RateLimit(path, rank, num_ranks, random.Random(0).uniform)


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
        pace = RateLimit(None, 0, 1, simulation.random.uniform)
        for _ in range(ASKING):
            simulation.at(simulation.now + simulation.random.uniform(0, every), asking(pace))
    simulation.run()


def test_a_prefix_that_throttles_for_a_minute_is_asked_for_what_it_gives(monkeypatch):
    """The store takes 300 requests a second for a minute, a fifth of what is wanted."""
    simulation = Simulation(monkeypatch, lambda second: 300 if 30 <= second < 90 else 5500)
    ask_without_end(simulation, 150, every=ASKING * NUM_NODES / 1500)
    assert not simulation.gave_up
    both = (simulation.asked, simulation.answered)
    asked, answered = ([counted[second] for second in range(150)] for counted in both)
    calm, throttled, after = slice(5, 30), slice(40, 90), slice(110, 140)
    assert sum(asked[throttled]) < 1.5 * sum(answered[throttled]), "mostly refused"
    assert sum(answered[throttled]) > 0.7 * 300 * 50, "they ask for less than they could have"
    assert max(asked[throttled]) < 2.5 * 300
    assert sum(answered[after]) / 30 > 0.9 * sum(answered[calm]) / 25, "they stay slow"


def test_after_an_outage_ranks_come_back_one_by_one(monkeypatch):
    ends = 10 + 60
    simulation = Simulation(monkeypatch, lambda second: 0 if 10 <= second < ends else 5500)
    ask_without_end(simulation, ends + 60, every=ASKING * NUM_NODES / 1500)
    assert not simulation.gave_up
    outage = [simulation.asked[second] for second in range(40, ends)]
    assert max(outage) < 120, "256 nodes ask, each every 7 s or less often"
    after = [simulation.asked[second] for second in range(ends, ends + 60)]
    assert max(after) < 1.1 * 1500, "never more than on a calm day"
    answered = sum(simulation.answered[second] for second in range(ends + 30, ends + 60))
    assert answered > 0.9 * 1500 * 30
