"""Ranks before a store in simulated time: the product's own attempts and turns, with events in place of threads."""

import heapq
import random
from collections import Counter, deque
from itertools import count

from pipeline.storage import faults
from trainer.reading import ranged_read
from trainer.reading.ranged_read import Attempts, ShardReadError
from trainer.reading.rate_limit import RateLimit
from trainer.reading.settings import Reading

NODE_RANKS = 8


class SlowDownError(Exception):
    """A 503."""


class Simulation:
    """A clock, what happens when, and a store that answers 503 above a limit of requests in each second.

    Attributes:
        limit: limit(second) is how many requests the store answers in that second.
        asked: Requests by second.
        answered: Those with an answer, by second.
        gave_up: (seconds, message) of each thing that was given up.
    """

    def __init__(self, monkeypatch, limit, latency_seconds=0.03, budget_seconds=300.0):
        self.now, self.limit = 1000.0, limit
        self.latency_seconds, self.budget_seconds = latency_seconds, budget_seconds
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

    def pace(self, rank=0, num_ranks=1):
        return RateLimit(None, rank, num_ranks, self.random.uniform)

    def request(self, pace, done):
        """Asks for something until it is there, as `ranged_read.retry` does, then calls done()."""
        attempts = Attempts("it", Reading(budget_seconds=self.budget_seconds), None, pace)

        def go_on():
            if seconds := attempts.seconds_to_wait():
                self.at(self.now + seconds, go_on)
                return
            attempts.begin()
            second = int(self.now - 1000)
            self.asked[second] += 1
            is_answered = self.asked[second] <= self.limit(second)
            self.answered[second] += is_answered
            self.at(self.now + self.latency_seconds, lambda: come_back(is_answered))

        def come_back(is_answered):
            if is_answered:
                attempts.answered()
                done()
                return
            try:
                attempts.failed(SlowDownError("503 SlowDown"))
            except ShardReadError as error:
                self.gave_up.append((self.now - 1000, str(error)))
            else:
                go_on()

        go_on()


class Node:
    """What the ranks of a node have fetched: each thing is asked for once where it has a cache."""

    def __init__(self, simulation, is_cached):
        self.simulation, self.is_cached = simulation, is_cached
        self.fetched = []
        self._waiting, self._there = {}, set()

    def fetch(self, key, pace, done):
        if not self.is_cached:
            self.fetched.append(key)
            self.simulation.request(pace, done)
        elif key in self._there:
            done()
        elif key in self._waiting:
            self._waiting[key].append(done)
        else:
            self._waiting[key] = [done]
            self.fetched.append(key)
            self.simulation.request(pace, lambda: self._came(key))

    def _came(self, key):
        self._there.add(key)
        for done in self._waiting.pop(key):
            done()


class Rank:
    """Fetches some things and then others, as many at a time as it has threads.

    Attributes:
        ready: When the things of its first step were there; None before.
    """

    def __init__(self, node, pace, tables, first, others, num_threads=8):
        self._node, self._pace = node, pace
        self._rest, self._needed = deque([*tables]), {*tables}
        self._after, self._first = deque([*first, *others]), {*tables, *first}
        self.ready = None
        for _ in range(num_threads):
            self._next()

    def _next(self):
        if not self._needed and not self._rest:  # tables are there: blocks can be planned
            self._rest, self._after = self._after, deque()
        if self._rest:
            key = self._rest.popleft()
            self._node.fetch(key, self._pace, lambda: self._came(key))

    def _came(self, key):
        simulation, had_tables = self._node.simulation, not self._needed
        self._needed.discard(key)
        self._first.discard(key)
        if not self._first and self.ready is None:
            self.ready = simulation.now - 1000
        self._next()
        if not had_tables and not self._needed:
            for _ in range(7):
                self._next()
