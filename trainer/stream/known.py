"""Keeps track of the passes of a mixture that exist.

While a build goes on, it adds further passes to its dataset. Until it has written n passes, the
order of the stream is known up to the first position that reads another pass: epoch e of a dataset
reads pass e as long as e is below the number of passes.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from pipeline.shards.dataset import Dataset
from pipeline.shards.growing import WaitPolicy, wait_for_pass
from pipeline.shards.manifest import root_hash
from pipeline.shards.records import Shard
from trainer.stream.left_out import NO_INSTANCES, LeftOutDocuments
from trainer.stream.order.order import Array, PassInstances, StreamOrder, Stretch, own_position
from trainer.stream.order.share import Rows
from trainer.stream.order.source import Mixture
from trainer.stream.order.state import CONTENT_DIGITS, DatasetState, StreamState
from trainer.stream.order.stretches import (
    first_left_out,
    remove_left_out,
    unskipped_stretches,
)


class KnownPasses:
    """The passes of a mixture that are known so far, of one split and one length.

    A pass is one set of instances made from the documents of a dataset. A build writes passes one
    after another. A pass becomes known when this object has seen that it is finished; a build that
    goes on makes more of them known.

    Attributes:
        mixture: The datasets.
        split: The split that is read.
        seq_len: The length of the instances that are read.
        weights: The weight of each dataset.
        num_passes: The number of passes of each dataset, including those not built yet.
        shards: The shards of all known passes, each with its dataset. New ones are appended.
    """

    def __init__(
        self,
        mixture: Mixture,
        split: str,
        seq_len: int,
        wait_policy: WaitPolicy | None = None,
        left_out: LeftOutDocuments | None = None,
    ) -> None:
        """Waits for the first pass of every dataset.

        Args:
            mixture: The datasets.
            split: The split to read.
            seq_len: The length of the instances to read.
            wait_policy: How long to wait for a pass that is being built; None takes the defaults.
            left_out: Documents whose instances are left out; None leaves none out.

        Raises:
            ValueError: A dataset does not have this split and length, or a pass has no instances,
                or all instances of a pass are left out. Or documents are to be left out of
                another split than train.
            FileNotFoundError: A pass did not appear within the time that `wait_policy` allows.
        """
        if left_out is not None and split != "train":
            raise ValueError(
                f"leave_out: documents are left out of the train split, and the split is {split!r};"
                " give no leave_out"
            )
        self.mixture = mixture
        self.split = split
        self.seq_len = seq_len
        self.weights = tuple(source.weight for source in mixture)
        self.num_passes = [source.dataset.num_passes(split, seq_len) for source in mixture]
        self.shards: list[tuple[Dataset, Shard]] = []
        self._wait_policy = wait_policy or WaitPolicy()
        self._documents = left_out
        self._passes: list[list[tuple[Shard, ...]]] = [[] for _ in mixture]
        # For each dataset and pass: the instances that are left out.
        self._left_out: list[list[PassInstances]] = [[] for _ in mixture]
        # For each dataset and pass: the index in `shards` of the pass's first shard.
        self._first_shard: list[list[int]] = [[] for _ in mixture]
        # For each dataset: the position within the dataset at which each pass begins, and that at
        # which the last one ends.
        self._pass_bounds: list[list[int]] = [[0] for _ in mixture]
        self._order = lru_cache(maxsize=2)(self._make_order)
        self._content = lru_cache(maxsize=None)(self._hash_passes)
        for dataset in range(len(mixture)):
            self._wait_for_next(dataset)

    @property
    def first_pass_instances(self) -> list[int]:
        """Number of instances in the first pass of each dataset, in the order of the mixture.

        Instances that are left out count too.
        """
        return [bounds[1] for bounds in self._pass_bounds]

    def order(self, state: StreamState) -> StreamOrder:
        """Returns the order of a stream over all passes that are known.

        It returns the same object again until another pass becomes known, so that caches of results
        can have it as a key.

        Args:
            state: A state of the stream, which has its seed, lanes and skipped stretches.
        """
        num_known = tuple(map(len, self._passes))
        return self._order(state.seed, state.num_lanes, state.skipped, num_known)

    def reaches(self, position: int) -> bool:
        """Returns whether the known passes suffice to say which instances are before a position."""
        return all(self._reaches(dataset, position) for dataset in range(len(self.mixture)))

    def next_stretches(
        self, state: StreamState, position: int, count: int, *, may_wait: bool
    ) -> list[Stretch] | None:
        """Returns the next `count` positions that exist, as stretches in ascending order.

        A position exists unless it is in a skipped stretch or holds an instance that is left out.

        Args:
            state: A state of the stream.
            position: The first position that may be returned.
            count: Number of positions to return, at least 1.
            may_wait: Whether to wait for passes that are being built.

        Returns:
            The stretches. None if `may_wait` is False and a pass that they need is not known.

        Raises:
            FileNotFoundError: A pass did not appear within the time that the wait policy allows.
        """
        stretches: list[Stretch] = []
        while count:
            window = unskipped_stretches(state.skipped, position, count)
            position = window[-1][1]
            if may_wait:
                self.wait_for(position)
            if not self.reaches(position):
                return None
            existing = remove_left_out(self.order(state), window)
            count -= sum(stop - start for start, stop in existing)
            stretches += existing
        return stretches

    def leave_out(self, state: StreamState) -> StreamState:
        """Returns a stream's state that leaves out the documents that this object was given.

        `state` may leave out a list of documents already. The list of this object must then begin
        with that list; the documents after it are new. If neither has a list, the state is returned
        unchanged.

        Args:
            state: A state of the stream.

        Raises:
            ValueError: The list of this object does not begin with the list of `state`. Or the
                stream has already read an instance of a new document.
        """
        before = state.left_out
        if self._documents is None:
            if before is not None:
                raise ValueError(
                    f"this stream leaves out {before.num_documents} document(s) with the hash"
                    f" {before.digest}, and no list is given: give it as leave_out"
                )
            return state
        count = before.num_documents if before else 0
        if before is not None and self._documents.state_of_first(count) != before:
            raise ValueError(
                f"leave_out: this stream leaves out {count} document(s) with the hash"
                f" {before.digest}, and the first {count} of the list given have"
                f" {self._documents.state_of_first(count).digest}; give the list that it was begun"
                " with, which may only grow at its end"
            )
        order = self.order_of_further(state, count)
        consumed = first_left_out(order, state.position)
        if consumed is not None:
            raise ValueError(
                f"leave_out: position {consumed} holds a listed document, and training has come to"
                f" position {state.position}; `python -m trainer forget` trains again from before"
                " it"
            )
        return replace(state, left_out=self._documents.state)

    def order_of_further(self, state: StreamState, num_before: int) -> StreamOrder:
        """Returns an order that leaves out only the instances of documents added to the list.

        Args:
            state: A state of the stream.
            num_before: Number of documents at the beginning of the list that were there before. An
                instance that holds one of them is not left out in this order, even if it also holds
                a document that was added.
        """
        assert self._documents is not None, "there is a list"
        left_out = []
        for source, passes in zip(self.mixture, self._passes, strict=True):
            instances = [
                self._documents.instances(source.dataset, self.seq_len, number, num_before)
                for number in range(len(passes))
            ]
            left_out.append(tuple(instances))
        return replace(self.order(state), left_out=tuple(left_out))

    def wait_for(self, position: int) -> None:
        """Waits until `reaches(position)` is true, and makes every pass known that exists by then.

        Raises:
            FileNotFoundError: No new file appeared for as long as the wait policy allows.
        """
        for dataset in range(len(self.mixture)):
            while not self._reaches(dataset, position):
                self._wait_for_next(dataset)
            while not self._has_all(dataset) and self._add_next(dataset):
                pass

    def shard_index(self, rows: Rows) -> Array:
        """Returns the shard of each range of rows, as an index into `shards`, int64 [R]."""
        most_passes = max(map(len, self._first_shard))
        first_DP = np.array(
            [[*starts, *[0] * (most_passes - len(starts))] for starts in self._first_shard]
        )
        num_known = np.array([len(starts) for starts in self._first_shard])
        index: Array = first_DP[rows.dataset, rows.epoch % num_known[rows.dataset]] + rows.shard
        return index

    def epochs(self, position: int) -> tuple[float, ...]:
        """Returns how many passes of each dataset are read before a position, such as 2.25."""
        return tuple(self._epochs(dataset, position) for dataset in range(len(self.mixture)))

    def describe(
        self, position: int, weights: Sequence[int] | None = None
    ) -> tuple[DatasetState, ...]:
        """Returns the state of each dataset at a stream position, as a `StreamState` has it.

        Args:
            position: Stream position.
            weights: Weights from which it is computed how far each dataset has come at the
                position; None takes those of the mixture. They differ if a saved state with other
                weights is compared. The returned states have the mixture's weights in any case.
        """
        states = []
        for index, source in enumerate(self.mixture):
            position_in_dataset = own_position(weights or self.weights, index, position)
            # A pass is begun if it begins before the position.
            num_begun = max(1, bisect_left(self._pass_bounds[index][:-1], position_in_dataset))
            content = self._content(index, num_begun)
            states.append(DatasetState(source.weight, self.num_passes[index], content))
        return tuple(states)

    def state(
        self,
        position: int,
        seed: int,
        num_lanes: int,
        skipped: tuple[Stretch, ...] = (),
        weights: Sequence[int] | None = None,
    ) -> StreamState:
        """Returns the state of a stream over these datasets at a position.

        Args:
            position: Stream position.
            seed: Seed of the stream.
            num_lanes: The number of lanes K.
            skipped: Stretches of positions that no step takes, ascending and not touching.
            weights: Weights from which it is computed how far each dataset has come; None takes
                those of the mixture, as in `describe`.
        """
        return StreamState(
            position=position,
            seed=seed,
            num_lanes=num_lanes,
            split=self.split,
            seq_len=self.seq_len,
            skipped=skipped,
            datasets=self.describe(position, weights),
        )

    def _make_order(
        self, seed: int, num_lanes: int, skipped: tuple[Stretch, ...], _num_known: tuple[int, ...]
    ) -> StreamOrder:
        """Makes the order of a stream over the passes that are known now.

        The result is cached by the arguments.

        Args:
            seed: Seed of the stream.
            num_lanes: The number of lanes K.
            skipped: Stretches of positions that no step takes.
            _num_known: Number of known passes of each dataset. It is not read; it makes the cache
                return another order when a further pass has become known.
        """
        return StreamOrder(
            datasets=tuple(map(tuple, self._passes)),
            weights=self.weights,
            seed=seed,
            num_lanes=num_lanes,
            skipped=skipped,
            left_out=tuple(map(tuple, self._left_out)) if self._documents else (),
        )

    def _epochs(self, dataset: int, position: int) -> float:
        """Returns how many passes of one dataset are read before a stream position."""
        bounds = self._pass_bounds[dataset]
        position_in_dataset = own_position(self.weights, dataset, position)
        num_rounds, place_in_round = divmod(position_in_dataset, bounds[-1])
        begun = bisect_right(bounds, place_in_round) - 1
        share = (place_in_round - bounds[begun]) / (bounds[begun + 1] - bounds[begun])
        return num_rounds * (len(bounds) - 1) + begun + share

    def _reaches(self, dataset: int, position: int) -> bool:
        """Returns whether one dataset's known passes suffice for all positions before `position`.

        Args:
            dataset: Index of the dataset.
            position: Stream position.
        """
        position_in_dataset = own_position(self.weights, dataset, position)
        return self._has_all(dataset) or position_in_dataset <= self._pass_bounds[dataset][-1]

    def _has_all(self, dataset: int) -> bool:
        """Returns whether every pass that a dataset will have is known already.

        Args:
            dataset: Index of the dataset.
        """
        return len(self._passes[dataset]) == self.num_passes[dataset]

    def _wait_for_next(self, dataset: int) -> None:
        """Waits for the next pass of a dataset, and adds it."""
        opened = self.mixture[dataset].dataset
        number = len(self._passes[dataset])
        wait_for_pass(opened, self.split, self.seq_len, number, self._wait_policy)
        is_added = self._add_next(dataset)
        assert is_added, f"{opened.url}: a finished dataset lacks a pass"

    def _add_next(self, dataset: int) -> bool:
        """Makes the next pass of a dataset known if it exists, and returns whether it does.

        Raises:
            ValueError: The pass has no instances, or all of them are left out.
        """
        opened = self.mixture[dataset].dataset
        number = len(self._passes[dataset])
        if not opened.find_pass(self.split, self.seq_len, number):
            return False
        shards = opened.shards(self.split, self.seq_len, number)
        num_instances = sum(shard.instances for shard in shards)
        if not num_instances:
            raise ValueError(
                f"{opened.url}: pass {number} of {self.split} L{self.seq_len} holds no instances"
            )
        instances = NO_INSTANCES
        if self._documents is not None:
            instances = self._documents.instances(opened, self.seq_len, number)
        self._left_out[dataset].append(instances)
        self._passes[dataset].append(tuple(shards))
        self._pass_bounds[dataset].append(self._pass_bounds[dataset][-1] + num_instances)
        self._first_shard[dataset].append(len(self.shards))
        self.shards += ((opened, shard) for shard in shards)
        return True

    def _hash_passes(self, dataset: int, count: int) -> str:
        """Returns the first digits of the root hash of a dataset's first `count` passes."""
        shards = (shard for shards in self._passes[dataset][:count] for shard in shards)
        return root_hash(shards)[:CONTENT_DIGITS]
