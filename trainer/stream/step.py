"""One rank's share of every optimizer step: planned, read and packed in the background (docs/order.md)."""

import contextlib
import queue
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from typing import Any

import numpy as np

from pipeline.shards.block import Array, Block, block_instances
from pipeline.shards.dataset import Dataset
from pipeline.shards.growing import WaitPolicy
from trainer.batches.pack import MicroBatch, balance_micro_batches, pack_micro_batches
from trainer.order.known import KnownPasses
from trainer.order.order import Stretch, next_stretches
from trainer.order.share import default_num_lanes, plan_step, rank_slots
from trainer.order.source import Mixture, one_dataset
from trainer.order.state import StreamState, parse_state, refuse_other_stream
from trainer.reading.block_reader import BlockReader, PlannedStep, plan_rows
from trainer.reading.settings import Reading

PREFETCH_GROUPS = 1
"""Groups of steps that lie ready while the next one is packed."""

MAX_VISIT_STEPS = 512
"""A block stays from one visit of its lane to the next if that comes within so many steps."""


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
        begin: The state that the stream began with.
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
    def state(self) -> dict[str, Any]:
        """The stream's state after this step, plain values for JSON."""
        after = self.position_after
        return replace(self.begin, position=after, datasets=self.passes.describe(after)).to_dict()

    @cached_property
    def epochs(self) -> tuple[float, ...]:
        """Passes of every dataset that the stream has come through after this step."""
        return self.passes.epochs(self.position_after)

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process: all that is known of the step by now, and no datasets."""
        return {**vars(self), "state": self.state, "epochs": self.epochs, "passes": None}


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


class StepLoader:
    """Iterator over this rank's share of every step, without end.

    It does no communication between ranks. A background thread keeps some steps ready, of small
    ones thousands. Leave it with `close()` or as a context manager; an abandoned one stops by
    itself, and none keeps the interpreter from exiting.

    Attributes:
        passes: What is known of the datasets.
        begin: The state that it began with.
        reads: Counts requests, blocks and bytes asked for so far.
    """

    def __init__(
        self,
        data: Dataset | Mixture,
        split: str,
        seq_len: int,
        *,
        rank: int,
        world_size: int,
        global_batch: int,
        micro_tokens: int,
        seed: int,
        state: Mapping[str, Any] | None = None,
        first_step: int = 0,
        num_steps: int | None = None,
        num_lanes: int | None = None,
        skip: Sequence[Stretch] = (),
        reading: Reading | None = None,
        pin_memory: bool = False,
        wait_policy: WaitPolicy | None = None,
        worker: int = 0,
        num_workers: int = 1,
    ) -> None:
        """Starts reading; `StepSizes` tells of the sizes.

        Args:
            data: A dataset, or several with names and weights.
            split: train or validation.
            seq_len: One of the datasets' lengths.
            rank: As in StepSizes.
            world_size: As in StepSizes.
            global_batch: As in StepSizes.
            micro_tokens: As in StepSizes.
            seed: Random seed of the order of shards.
            state: `RankStep.state` of the last step taken, to continue after it; None begins at
                position 0.
            first_step: Steps taken before, for `RankStep.step`.
            num_steps: Ends, and reads nothing, after so many steps, those of other workers
                included.
            num_lanes: K, where the default is not wanted; a state has its own.
            skip: Stretches of positions to leave out, besides those of the state.
            reading: Memory, threads and retries.
            pin_memory: Puts steps into pinned memory, from which `to_device` copies to a GPU
                without waiting.
            wait_policy: How to wait for builds that are still running.
            worker: As in StepSizes.
            num_workers: As in StepSizes.

        Raises:
            ValueError: Sizes that do not fit together, or a state of other data, another seed or
                number of lanes.
            FileNotFoundError: Nothing new came for as long as the policy says.
        """
        sizes = StepSizes(rank, world_size, global_batch, micro_tokens, worker, num_workers)
        sizes.check(seq_len)
        mixture = one_dataset(data) if isinstance(data, Dataset) else data
        stop = threading.Event()
        wait_policy = replace(wait_policy or WaitPolicy(), stop=stop)
        self.passes = KnownPasses(mixture, split, seq_len, wait_policy)
        begin = _begin(self.passes, seed, num_lanes, global_batch, state).skipping(skip)
        self.begin, self._stop = begin, stop
        self.reads = reader = BlockReader(self.passes.shards, reading or Reading())
        end = None if num_steps is None else first_step + num_steps
        groups = _read_steps(self.passes, begin, sizes, reader, (first_step, end), pin_memory)
        self._ready: queue.Queue[list[RankStep] | BaseException] = queue.Queue(PREFETCH_GROUPS)
        self._taken: deque[RankStep] = deque()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(
            target=_hand_over, args=(groups, self._ready, stop), daemon=True, name="prefetch"
        )
        self._finalizer = weakref.finalize(self, _close, stop, reader, self._thread, self._ready)
        self._thread.start()

    def __iter__(self) -> Iterator[RankStep]:
        return self

    def __next__(self) -> RankStep:
        """The next step.

        Raises:
            FileNotFoundError: A shard is missing, or waiting for a build ended.
            ShardReadError: A shard could not be read in full; a ValueError.
        """
        if self._stop.is_set():
            raise ValueError("the stream is closed")
        while not self._taken:
            if self._failure is not None:
                raise self._failure
            found = self._ready.get()
            if isinstance(found, BaseException):
                self._failure = found
            else:
                self._taken.extend(found)
        return self._taken.popleft()

    @property
    def is_ready(self) -> bool:
        """Whether the next step, or what will be raised in its place, is there."""
        return bool(self._taken) or self._failure is not None or not self._ready.empty()

    def describe(self, step: RankStep, global_batch: int) -> list[str]:
        """Instances of a step's global batch, of all ranks, as SHARD:START-STOP."""
        order, whole = self.passes.order(self.begin), 2**40  # no shard is cut into blocks
        rows = plan_step(order, step.first_position, global_batch, 0, 1, whole)
        found = (self.passes.shards[number] for number in self.passes.shard_index(rows))
        return [
            f"{dataset.locate(shard.name)}:{start}-{stop}"
            for (dataset, shard), start, stop in zip(found, rows.start, rows.stop, strict=True)
        ]

    def __enter__(self) -> "StepLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops reading; at once, but for a second's grace to reads on their way."""
        self._finalizer()


def _begin(
    passes: KnownPasses,
    seed: int,
    num_lanes: int | None,
    global_batch: int,
    state: Mapping[str, Any] | None,
) -> StreamState:
    """Where the stream begins or goes on."""
    if state is None:
        first_passes, block_size = passes.first_pass_instances, block_instances(passes.seq_len)
        lanes = num_lanes or default_num_lanes(global_batch, first_passes, block_size)
        return passes.state(0, seed, lanes)
    then = parse_state(state)
    passes.wait_for(then.position)
    now = passes.state_like(then, seed, num_lanes or then.num_lanes)
    refuse_other_stream(then, now, [each.name for each in passes.mixture])
    return then


def _hand_over(
    groups: Iterator[list[RankStep]],
    ready: "queue.Queue[list[RankStep] | BaseException]",
    stop: threading.Event,
) -> None:
    """The background thread; it knows nothing of the loader, which can so be collected."""
    try:
        for group in groups:
            if stop.is_set():
                return
            ready.put(group)
        ready.put(StopIteration())
    except BaseException as error:  # noqa: BLE001 - raised in the consumer's thread
        if not stop.is_set():
            ready.put(error)


def _close(
    stop: threading.Event,
    reader: BlockReader,
    thread: threading.Thread,
    ready: "queue.Queue[list[RankStep] | BaseException]",
) -> None:
    """Stops all threads. One that waits to put something is let go on by making room."""

    def drain() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                ready.get_nowait()

    stop.set()
    reader.close()
    drain()
    if thread is not threading.current_thread():  # which may collect the garbage that closes it
        thread.join(1.0)
        drain()  # an error holds the frames it came through


def _read_steps(
    passes: KnownPasses,
    begin: StreamState,
    sizes: StepSizes,
    reader: BlockReader,
    numbers: tuple[int, int | None],
    pin_memory: bool,
) -> Iterator[list[RankStep]]:
    """The steps of numbers, those together that are packed together; endless where the last is None."""
    step, end = numbers[0] + sizes.worker, numbers[1]
    position = _skip_steps(begin, begin.position, sizes.worker * sizes.global_batch)
    while end is None or step < end:
        passes.wait_for(_skip_steps(begin, position, sizes.global_batch))
        planned = _plan(passes, begin, sizes, position, (step, end))
        for group, block in reader.steps(planned, _min_steps(passes, begin, sizes)):
            steps = _pack(group, block, sizes, begin, passes, pin_memory)
            step = steps[-1].step + sizes.num_workers
            others = (sizes.num_workers - 1) * sizes.global_batch
            position = _skip_steps(begin, steps[-1].position_after, others)
            yield steps


def _skip_steps(begin: StreamState, position: int, num_instances: int) -> int:
    """The position after so many further instances."""
    if not num_instances:
        return position
    return next_stretches(begin.skipped, position, num_instances)[-1][1]


def _plan(
    passes: KnownPasses,
    begin: StreamState,
    sizes: StepSizes,
    position: int,
    numbers: tuple[int, int | None],
) -> Iterator[PlannedStep]:
    """What this process reads of each of its steps as far as the order is known."""
    order, block_size = passes.order(begin), block_instances(passes.seq_len)
    step, end = numbers
    while end is None or step < end:
        stretches = next_stretches(begin.skipped, position, sizes.global_batch)
        first, after = stretches[0][0], stretches[-1][1]
        if not passes.reaches(after):
            return
        rows = plan_step(order, first, sizes.global_batch, sizes.rank, sizes.world_size, block_size)
        facts = (step, first, after, rows.dataset)
        yield plan_rows(passes.shard_index(rows), rows.block, rows.start, rows.stop, facts)
        step += sizes.num_workers
        position = _skip_steps(begin, after, (sizes.num_workers - 1) * sizes.global_batch)


def _min_steps(passes: KnownPasses, begin: StreamState, sizes: StepSizes) -> int:
    """The steps until every lane of the rarest dataset has been visited.

    A block must live between two visits.
    """
    weights = passes.weights
    visits = -(-begin.num_lanes * sum(weights) // (sizes.global_batch * min(weights)))
    return min(MAX_VISIT_STEPS, visits + 1)


def _pack(
    planned: Sequence[PlannedStep],
    block: Block,
    sizes: StepSizes,
    begin: StreamState,
    passes: KnownPasses,
    pin_memory: bool,
) -> list[RankStep]:
    """Steps of which the instances lie one after another in a block."""
    bounds = np.cumsum([0, *(each.num_rows for each in planned)]).tolist()
    offsets = block.offsets
    cuts = [
        [
            (start + first, start + last)
            for first, last in balance_micro_batches(offsets[start : stop + 1], sizes.micro_tokens)
        ]
        for start, stop in pairwise(bounds)
    ]
    every = pack_micro_batches(block, [cut for each in cuts for cut in each], pin_memory)
    micro_batches = iter(every)
    steps = []
    for number, each in enumerate(planned):
        start, stop = bounds[number : number + 2]
        step, first, after, dataset = each.facts
        steps.append(
            RankStep(
                step=step,
                first_position=first,
                position_after=after,
                micro_batches=list(islice(micro_batches, len(cuts[number]))),
                num_instances=stop - start,
                num_tokens=int(offsets[stop] - offsets[start]),
                num_masked=int(block.masked_offsets[stop] - block.masked_offsets[start]),
                drawn=_count_drawn(each, dataset, offsets[start : stop + 1], len(passes.mixture)),
                begin=begin,
                passes=passes,
            )
        )
    return steps


def _count_drawn(
    planned: PlannedStep, dataset: Array, offsets: Array, num_datasets: int
) -> tuple[tuple[int, int], ...]:
    """Instances and tokens of every dataset in a share with these offsets [N+1]."""
    if num_datasets == 1:
        return ((len(offsets) - 1, int(offsets[-1] - offsets[0])),)
    num_instances = planned.stop - planned.start
    ends = np.cumsum(num_instances)
    tokens = offsets[ends] - offsets[ends - num_instances]
    columns = [np.bincount(dataset, each, num_datasets) for each in (num_instances, tokens)]
    return tuple((int(instances), int(total)) for instances, total in zip(*columns, strict=True))
