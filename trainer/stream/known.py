"""One split and length of a mixture as far as its passes are known: all, or those built so far."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from pipeline.shards.dataset import Dataset
from pipeline.shards.growing import WaitPolicy, wait_for_pass
from pipeline.shards.manifest import root_hash
from pipeline.shards.records import Shard
from trainer.stream.order.order import Array, StreamOrder, Stretch, own_position
from trainer.stream.order.share import Rows
from trainer.stream.order.source import Mixture
from trainer.stream.order.state import CONTENT_DIGITS, DatasetState, StreamState


class KnownPasses:
    """The passes of every dataset of a mixture; more become known where a build goes on.

    The first P epochs of a dataset need only the passes up to theirs, so what is known gives the
    order of all positions before the first pass that is not.

    Attributes:
        shards: Shards of all passes known, each with its dataset; the list grows at its end.
    """

    def __init__(
        self, mixture: Mixture, split: str, seq_len: int, wait_policy: WaitPolicy | None = None
    ) -> None:
        """Waits for the first pass of every dataset; a ValueError where there are no instances."""
        self.mixture, self.split, self.seq_len = mixture, split, seq_len
        self.weights = tuple(each.weight for each in mixture)
        self.num_passes = [each.dataset.num_passes(split, seq_len) for each in mixture]
        self.shards: list[tuple[Dataset, Shard]] = []
        self._wait_policy = wait_policy or WaitPolicy()
        self._passes: list[list[tuple[Shard, ...]]] = [[] for _ in mixture]
        self._first_shard: list[list[int]] = [[] for _ in mixture]
        # Of each pass in the dataset's own positions, and the end.
        self._starts: list[list[int]] = [[0] for _ in mixture]
        self._order = lru_cache(maxsize=2)(self._make_order)
        self._content = lru_cache(maxsize=None)(self._hash_passes)
        for dataset in range(len(mixture)):
            self._wait_for_next(dataset)

    @property
    def first_pass_instances(self) -> list[int]:
        """N_0 of every dataset."""
        return [starts[1] for starts in self._starts]

    def order(self, state: StreamState) -> StreamOrder:
        """The order as far as it is known: the same object until more is."""
        known = tuple(map(len, self._passes))
        return self._order(state.seed, state.num_lanes, state.skipped, known)

    def reaches(self, position: int) -> bool:
        """Whether the order of all positions before this one is known."""
        return all(self._reaches(dataset, position) for dataset in range(len(self.mixture)))

    def wait_for(self, position: int) -> None:
        """Waits until all positions before this one are known, and takes in what more there is.

        A FileNotFoundError ends it where nothing new came for as long as the policy says.
        """
        for dataset in range(len(self.mixture)):
            while not self._reaches(dataset, position):
                self._wait_for_next(dataset)
            while not self._has_all(dataset) and self._find_next(dataset):
                pass

    def shard_index(self, rows: Rows) -> Array:
        """Index into `shards` of each of the rows [R]."""
        width = max(map(len, self._first_shard))
        first_DP = np.array([[*each, *[0] * (width - len(each))] for each in self._first_shard])
        num_known = np.array([len(each) for each in self._first_shard])
        index: Array = first_DP[rows.dataset, rows.epoch % num_known[rows.dataset]] + rows.shard
        return index

    def epochs(self, position: int) -> tuple[float, ...]:
        """Passes of every dataset that lie before a position, as 2.25 for two and a quarter."""
        return tuple(self._epochs(dataset, position) for dataset in range(len(self.mixture)))

    def describe(
        self, position: int, weights: Sequence[int] | None = None
    ) -> tuple[DatasetState, ...]:
        """What the state at a position says of the datasets, perhaps with other weights."""
        found = []
        for d, each in enumerate(self.mixture):
            own = own_position(weights or self.weights, d, position)
            num_begun = max(1, bisect_left(self._starts[d][:-1], own))  # passes with one before it
            found.append(DatasetState(each.weight, self.num_passes[d], self._content(d, num_begun)))
        return tuple(found)

    def state(
        self,
        position: int,
        seed: int,
        num_lanes: int,
        skipped: tuple[Stretch, ...] = (),
        weights: Sequence[int] | None = None,
    ) -> StreamState:
        """The state at a position, with datasets described at those of other weights."""
        found = (self.split, self.seq_len, skipped, self.describe(position, weights))
        return StreamState(position, seed, num_lanes, *found)

    def _make_order(
        self, seed: int, num_lanes: int, skipped: tuple[Stretch, ...], _num_known: tuple[int, ...]
    ) -> StreamOrder:
        return StreamOrder(tuple(map(tuple, self._passes)), self.weights, seed, num_lanes, skipped)

    def _epochs(self, dataset: int, position: int) -> float:
        starts = self._starts[dataset]
        full, rest = divmod(own_position(self.weights, dataset, position), starts[-1])
        begun = bisect_right(starts, rest) - 1
        share = (rest - starts[begun]) / (starts[begun + 1] - starts[begun])
        return full * (len(starts) - 1) + begun + share

    def _reaches(self, dataset: int, position: int) -> bool:
        own = own_position(self.weights, dataset, position)
        return self._has_all(dataset) or own <= self._starts[dataset][-1]

    def _has_all(self, dataset: int) -> bool:
        return len(self._passes[dataset]) == self.num_passes[dataset]

    def _wait_for_next(self, dataset: int) -> None:
        opened, number = self.mixture[dataset].dataset, len(self._passes[dataset])
        wait_for_pass(opened, self.split, self.seq_len, number, self._wait_policy)
        found = self._find_next(dataset)
        assert found, f"{opened.url}: a finished dataset lacks a pass"

    def _find_next(self, dataset: int) -> bool:
        """Takes in the next pass of a dataset, where it is there."""
        opened, number = self.mixture[dataset].dataset, len(self._passes[dataset])
        if not opened.find_pass(self.split, self.seq_len, number):
            return False
        shards = opened.shards(self.split, self.seq_len, number)
        if not (num_instances := sum(shard.instances for shard in shards)):
            raise ValueError(
                f"{opened.url}: pass {number} of {self.split} L{self.seq_len} holds no instances"
            )
        self._passes[dataset].append(tuple(shards))
        self._starts[dataset].append(self._starts[dataset][-1] + num_instances)
        self._first_shard[dataset].append(len(self.shards))
        self.shards += ((opened, shard) for shard in shards)
        return True

    def _hash_passes(self, dataset: int, count: int) -> str:
        shards = (shard for passed in self._passes[dataset][:count] for shard in passed)
        return root_hash(shards)[:CONTENT_DIGITS]
