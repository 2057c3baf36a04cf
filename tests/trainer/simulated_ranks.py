"""Ranks before a store in simulated time: the product's own attempts and turns, with events in place of threads."""

import heapq
import random
from collections import Counter
from itertools import count

from pipeline.storage import faults
from trainer.stream import ranged_read
from trainer.stream.pace import Pace
from trainer.stream.ranged_read import Attempts, ShardReadError


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
        return Pace(None, rank, num_ranks, self.random.uniform)

    def request(self, pace, done):
        """Asks for something until it is there, as `ranged_read.retry` does, then calls done()."""
        attempts = Attempts(lambda: "it", 60.0, self.budget_seconds, None, pace)

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
