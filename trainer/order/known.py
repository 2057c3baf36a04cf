"""One split and length of a mixture, as far as its passes are known.

All passes are known, or those that a running build has finished.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from pipeline.shards.growing import WaitPolicy, wait_for_pass
from pipeline.shards.manifest import root_hash
from pipeline.shards.records import Shard
from trainer.order.order import Array, Passes, ShardSize, StreamOrder, Stretch, own_position
from trainer.order.share import Runs
from trainer.order.source import JoinedShards, Mixture, ShardStore
from trainer.order.state import CONTENT_DIGITS, DatasetState, StreamState


class KnownPasses:
    """The passes of every dataset of a mixture; more become known where a build goes on.

    The first P epochs of a dataset need only the passes up to theirs, so what is known gives the
    order of all positions before the first pass that is not.

    Attributes:
        store: Reads the shards.
        shards: Shards of all passes known, as plans index them; the list grows at its end.
    """

    def __init__(
        self, mixture: Mixture, split: str, seq_len: int, wait_policy: WaitPolicy | None = None
    ) -> None:
        """Waits for the first pass of every dataset.

        Raises:
            FileNotFoundError: Nothing new came for as long as the policy says.
            ValueError: A dataset has no such instances.
        """
        self.mixture = mixture
        self.split = split
        self.seq_len = seq_len
        self.weights = tuple(each.weight for each in mixture)
        self.num_passes = [each.dataset.num_passes(split, seq_len) for each in mixture]
        # One dataset is its own store: of 80,000 shards the names joined with URLs are 35 MB.
        first = mixture[0].dataset
        self.store: ShardStore = first if len(mixture) == 1 else JoinedShards(first.vocab_size)
        self.shards: list[Shard] = []
        self._wait_policy = wait_policy or WaitPolicy()
        self._passes: list[list[list[Shard]]] = [[] for _ in mixture]
        self._first_shard: list[list[int]] = [[] for _ in mixture]
        self._starts: list[list[int]] = [
            [0] for _ in mixture
        ]  # of each pass in the dataset's own positions, and the end
        self._order = lru_cache(maxsize=2)(self._make_order)
        self._content = lru_cache(maxsize=None)(self._hash_passes)
        self._described = lru_cache(maxsize=64)(self._describe)
        for dataset in range(len(mixture)):
            self._wait_for_next(dataset)

    @property
    def sizes(self) -> tuple[Passes, ...]:
        """What the order is a function of."""
        return tuple(
            tuple(
                tuple(ShardSize(shard.name, shard.instances) for shard in shards)
                for shards in passes
            )
            for passes in self._passes
        )

    @property
    def first_pass_instances(self) -> list[int]:
        """N_0 of every dataset."""
        return [starts[1] for starts in self._starts]

    def order(self, seed: int, num_lanes: int, skipped: tuple[Stretch, ...]) -> StreamOrder:
        """The order, as far as it is known.

        It is the same object until more is known, as what is worked out of it is kept.
        """
        return self._order(seed, num_lanes, skipped, tuple(map(len, self._passes)))

    def reaches(self, position: int) -> bool:
        """Whether the order of all positions before this one is known."""
        return all(self._reaches(dataset, position) for dataset in range(len(self.mixture)))

    def wait_for(self, position: int) -> None:
        """Waits until the order of all positions before this one is known.

        Takes in what more there is.

        Raises:
            FileNotFoundError: Nothing new came for as long as the policy says.
        """
        for dataset in range(len(self.mixture)):
            while not self._reaches(dataset, position):
                self._wait_for_next(dataset)
            while not self._has_all(dataset) and self._find_next(dataset):
                pass

    def shard_index(self, runs: Runs) -> Array:
        """Index into `shards` of every run [R]."""
        width = max(map(len, self._first_shard))
        first_DP = np.array(
            [[*each, *[0] * (width - len(each))] for each in self._first_shard], np.int64
        )
        num_known = np.array([len(each) for each in self._first_shard])
        index: Array = first_DP[runs.dataset, runs.epoch % num_known[runs.dataset]] + runs.shard
        return index

    def epochs(self, position: int) -> tuple[float, ...]:
        """Passes of every dataset that lie before a position, as 2.25 for two and a quarter."""
        return tuple(self._epochs(dataset, position) for dataset in range(len(self.mixture)))

    def describe(
        self, position: int, weights: Sequence[int] | None = None
    ) -> tuple[DatasetState, ...]:
        """What the state at a position says of the datasets, perhaps with other weights."""
        own = [own_position(weights or self.weights, d, position) for d in range(len(self.mixture))]
        return self._described(tuple(self._num_begun(d, each) for d, each in enumerate(own)))

    def state_like(self, then: StreamState, seed: int, num_lanes: int) -> StreamState:
        """The state that a stream over these datasets has where another one stood."""
        weights = [each.weight for each in then.datasets]
        datasets = self.describe(
            then.position, weights if len(weights) == len(self.mixture) else None
        )
        return StreamState(
            then.position, seed, num_lanes, self.split, self.seq_len, then.skipped, datasets
        )

    def state(
        self, position: int, seed: int, num_lanes: int, skipped: Sequence[Stretch] = ()
    ) -> StreamState:
        """The state at a position."""
        datasets = self.describe(position)
        return StreamState(
            position, seed, num_lanes, self.split, self.seq_len, tuple(skipped), datasets
        )

    def _make_order(
        self, seed: int, num_lanes: int, skipped: tuple[Stretch, ...], _num_known: tuple[int, ...]
    ) -> StreamOrder:
        return StreamOrder(self.sizes, self.weights, seed, num_lanes, skipped)

    def _describe(self, num_begun: tuple[int, ...]) -> tuple[DatasetState, ...]:
        return tuple(
            DatasetState(each.weight, self.num_passes[d], self._content(d, num_begun[d]))
            for d, each in enumerate(self.mixture)
        )

    def _epochs(self, dataset: int, position: int) -> float:
        starts = self._starts[dataset]
        full, rest = divmod(own_position(self.weights, dataset, position), starts[-1])
        begun = bisect_right(starts, rest) - 1
        share = (rest - starts[begun]) / (starts[begun + 1] - starts[begun])
        return full * (len(starts) - 1) + begun + share

    def _num_begun(self, dataset: int, own: int) -> int:
        """Passes that hold a position of the dataset before this one, at least one."""
        return max(1, bisect_left(self._starts[dataset][:-1], own))

    def _reaches(self, dataset: int, position: int) -> bool:
        return (
            self._has_all(dataset)
            or own_position(self.weights, dataset, position) <= self._starts[dataset][-1]
        )

    def _has_all(self, dataset: int) -> bool:
        return len(self._passes[dataset]) == self.num_passes[dataset]

    def _wait_for_next(self, dataset: int) -> None:
        opened = self.mixture[dataset].dataset
        wait_for_pass(
            opened, self.split, self.seq_len, len(self._passes[dataset]), self._wait_policy
        )
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
        self._passes[dataset].append(shards)
        self._starts[dataset].append(self._starts[dataset][-1] + num_instances)
        self._first_shard[dataset].append(len(self.shards))
        joined = self.store
        self.shards += (
            [joined.add(opened, shard) for shard in shards]
            if isinstance(joined, JoinedShards)
            else shards
        )
        return True

    def _hash_passes(self, dataset: int, count: int) -> str:
        return root_hash(shard for shards in self._passes[dataset][:count] for shard in shards)[
            :CONTENT_DIGITS
        ]
