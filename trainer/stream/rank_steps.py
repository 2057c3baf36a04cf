"""Plan, read, pack: the steps of one rank (docs/order.md, rules 4 to 7)."""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise, repeat
from typing import Any, NamedTuple

import numpy as np

from pipeline.shards.block import Array, block_instances
from trainer.batches.pack import MicroBatch, balance_micro_batches, pack_micro_batches
from trainer.batches.rows import HostMemory
from trainer.order.known import KnownPasses
from trainer.order.order import step_positions
from trainer.order.share import Runs, cut_at_blocks, rank_runs, rank_slots
from trainer.order.state import StreamState
from trainer.reading.block_reader import BlockReader, Group, ReadCounts, Steps
from trainer.reading.settings import Reading


@dataclass(frozen=True)
class RankStep:
    """This rank's share of one global batch.

    Attributes:
        step: Steps taken before it.
        first_position: Stream position of the global batch's first instance.
        position_after: Position of the next batch's first instance, but for what is skipped there.
        micro_batches: At least one, in slot order.
        num_instances: Instances of this rank's share, as the next three count that share.
        num_tokens: Real tokens, specials included.
        num_masked: Masked positions.
        drawn: Instances and tokens of every dataset of the mixture.
        begin: A state of the stream before this step.
        passes: What is known of the datasets; does not go to another process.
    """

    step: int
    first_position: int
    position_after: int
    micro_batches: list[MicroBatch]
    num_instances: int
    num_tokens: int
    num_masked: int
    drawn: tuple[tuple[int, int], ...]
    begin: StreamState
    passes: KnownPasses

    @cached_property
    def stream(self) -> StreamState:
        """The stream's state after this step."""
        return replace(
            self.begin,
            position=self.position_after,
            datasets=self.passes.describe(self.position_after),
        )

    @cached_property
    def state(self) -> dict[str, Any]:
        """The same, plain values for JSON."""
        return self.stream.to_dict()

    @cached_property
    def epochs(self) -> tuple[float, ...]:
        """Passes of every dataset that the stream has come through after this step."""
        return self.passes.epochs(self.position_after)

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process: all that is known of the step by now, and no datasets."""
        return {**vars(self), "stream": self.stream, "epochs": self.epochs, "passes": None}


@dataclass(frozen=True)
class StepSizes:
    """How global batches are shared; every number may change from run to run.

    Attributes:
        rank: Number of this process among world_size.
        world_size: Ranks that share every global batch.
        global_batch: Instances of a step over all ranks, at least world_size.
        micro_tokens: Real tokens of a micro-batch at most, at least seq_len.
        worker: Which of num_workers processes of this rank reads; it takes steps worker, worker +
            num_workers, ...
        num_workers: Processes that take the rank's steps in turn.
    """

    rank: int
    world_size: int
    global_batch: int
    micro_tokens: int
    worker: int = 0
    num_workers: int = 1

    def check(self, seq_len: int) -> None:
        """Refuses sizes that do not fit together."""
        if self.micro_tokens < seq_len:
            raise ValueError(
                f"micro_tokens is {self.micro_tokens}: one instance may take all of seq_len {seq_len}; raise it"
            )
        rank_slots(self.global_batch, self.rank, self.world_size)


PLANNED_STEPS, PLANNED_STRETCHES = 512, 2**15
"""Steps are planned together up to so many, and while they have fewer stretches of lanes than this.
"""

MAX_VISIT_STEPS = 512
"""A block stays from one visit of its lane to the next if that comes within so many steps."""


class _StepPlace(NamedTuple):
    """What is known of a step before it is read.

    `drawn` is there for a mixture: dataset and instances of each row of its plan, [2, R].
    """

    first_position: int
    position_after: int
    drawn: Array | None


class RankSteps:
    """Plans, reads and packs. A window reads the passes known when it begins, the next one more."""

    def __init__(
        self,
        passes: KnownPasses,
        begin: StreamState,
        sizes: StepSizes,
        reading: Reading,
        is_pinned: bool = False,
    ) -> None:
        """Nothing is read before the first step is asked for."""
        self.counts = ReadCounts()
        self._passes, self._begin, self._sizes, self._reading = passes, begin, sizes, reading
        self._memory = HostMemory(is_pinned)
        self._places: deque[_StepPlace] = deque()
        self._window: BlockReader | None = None
        self._is_closed = False

    def groups(self, first_step: int, num_steps: int | None) -> Iterator[list[RankStep]]:
        """The steps, numbered from first_step, those together that are packed together.

        They are endless without num_steps.
        """
        sizes, end = self._sizes, None if num_steps is None else first_step + num_steps
        step, state = first_step + sizes.worker, self._leave(self._begin, sizes.worker)
        while end is None or step < end:
            self._passes.wait_for(state.after(sizes.global_batch))
            plan = self.plan(state, None if end is None else -((step - end) // sizes.num_workers))
            shards = tuple(self._passes.shards)
            window = self._window = BlockReader(
                self._passes.store,
                shards,
                plan,
                self._reading,
                self.min_steps(),
                self._memory,
                self.counts,
            )
            try:
                if self._is_closed:
                    return
                for group in window.groups():
                    steps = self._pack(step, group, state)
                    step += len(steps) * sizes.num_workers
                    state = self._leave(steps[-1].stream, sizes.num_workers - 1)
                    yield steps
            finally:
                window.close()
                self._window = None  # which holds the plan, and that this: hundreds of MB would wait for a collection

    def close(self) -> None:
        """Stops reading; from any thread."""
        self._is_closed = True
        if (window := self._window) is not None:
            window.close()

    def _leave(self, state: StreamState, num_steps: int) -> StreamState:
        """The state after so many steps that other workers take."""
        return (
            replace(state, position=state.after(num_steps * self._sizes.global_batch))
            if num_steps
            else state
        )

    def plan(self, state: StreamState, num_steps: int | None) -> Iterator[Steps]:
        """What this process reads of each of its steps as far as the order is known."""
        sizes, each = self._sizes, self._sizes.num_workers
        order = self._passes.order(state.seed, state.num_lanes, state.skipped)
        position, most = (
            state.position,
            max(1, min(PLANNED_STEPS, PLANNED_STRETCHES // state.num_lanes) // each),
        )
        while count := most if num_steps is None else min(most, num_steps):
            firsts, afters = step_positions(
                state.skipped, position, sizes.global_batch, count * each
            )
            own = bisect_right(
                afters[::each].tolist(), False, key=lambda after: not self._passes.reaches(after)
            )
            if not own:
                return
            runs = rank_runs(
                order,
                position,
                sizes.global_batch,
                sizes.rank,
                sizes.world_size,
                (own - 1) * each + 1,
            ).of_every(each)
            yield self._rows_of_steps(runs, firsts[::each][:own], afters[::each][:own])
            position = int(afters[own * each - 1])
            num_steps = None if num_steps is None else num_steps - own

    def _rows_of_steps(self, runs: Runs, firsts: Array, afters: Array) -> Steps:
        """The rows of steps, the place of each of which is remembered."""
        block_size = block_instances(self._passes.seq_len)
        runs, block = cut_at_blocks(runs, block_size)
        first, bounds = block * block_size, np.searchsorted(runs.step, np.arange(len(firsts) + 1))
        rows: Iterable[Array | None] = repeat(None)
        if len(self._passes.mixture) > 1:
            rows = np.split(np.stack([runs.dataset, runs.stop - runs.start]), bounds[1:-1], axis=1)
        self._places += map(_StepPlace, firsts.tolist(), afters.tolist(), rows)
        return Steps(
            self._passes.shard_index(runs), block, runs.start - first, runs.stop - first, bounds
        )

    def min_steps(self) -> int:
        """The steps until every lane has been visited: a block must live between two visits.

        A lane of the rarest dataset is visited once in so many steps.
        """
        weights = self._passes.weights
        visits = (
            -(-self._begin.num_lanes * sum(weights) // (self._sizes.global_batch * min(weights)))
            + 1
        )
        return min(MAX_VISIT_STEPS, visits)

    def _pack(self, first_step: int, group: Group, state: StreamState) -> list[RankStep]:
        """What was gathered together, as steps that follow a state."""
        offsets, micro_tokens = group.block.offsets, self._sizes.micro_tokens
        shares = list(pairwise(group.bounds))
        cuts = [
            balance_micro_batches(offsets[start : stop + 1], micro_tokens) for start, stop in shares
        ]
        moved = [
            (start + first, start + last)
            for (start, _), each in zip(shares, cuts, strict=True)
            for first, last in each
        ]
        micro_batches = iter(pack_micro_batches(group.block, moved, self._memory))
        tokens, masked = (
            each[group.bounds].tolist() for each in (offsets, group.block.masked_offsets)
        )
        steps = []
        for number, (start, stop) in enumerate(shares):
            place = self._places.popleft()
            step = RankStep(
                step=first_step + number * self._sizes.num_workers,
                first_position=place.first_position,
                position_after=place.position_after,
                micro_batches=list(islice(micro_batches, len(cuts[number]))),
                num_instances=stop - start,
                num_tokens=tokens[number + 1] - tokens[number],
                num_masked=masked[number + 1] - masked[number],
                drawn=_count_drawn(
                    offsets[start : stop + 1], place.drawn, len(self._passes.mixture)
                ),
                begin=state,
                passes=self._passes,
            )
            steps.append(step)
        return steps


def _count_drawn(
    offsets: Array, drawn: Array | None, num_datasets: int
) -> tuple[tuple[int, int], ...]:
    """Instances and tokens of every dataset in a share with these offsets [N+1]."""
    if drawn is None:
        return ((len(offsets) - 1, int(offsets[-1] - offsets[0])),)
    dataset, num_instances = drawn
    ends = np.cumsum(num_instances)
    tokens = offsets[ends] - offsets[ends - num_instances]
    columns = [np.bincount(dataset, each, num_datasets) for each in (num_instances, tokens)]
    return tuple((int(instances), int(total)) for instances, total in zip(*columns, strict=True))
