"""One rank's share of every step: planned, read and packed in the background (docs/order.md)."""

import queue
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np

from pipeline.shards.block import Array, Block, block_instances
from pipeline.shards.dataset import Dataset
from pipeline.shards.growing import WaitPolicy
from trainer.stream.batches.pack import MicroBatch, balance_micro_batches, pack_micro_batches
from trainer.stream.batches.redraw import MaskRedraw, ShareAt
from trainer.stream.known import KnownPasses
from trainer.stream.order.order import Stretch, next_stretches
from trainer.stream.order.share import default_num_lanes, plan_steps, rank_slots
from trainer.stream.order.source import Mixture, one_dataset
from trainer.stream.order.state import StreamState, parse_state, refuse_other_stream
from trainer.stream.reading.block_reader import BlockReader, PlannedStep, plan_rows
from trainer.stream.reading.settings import Reading

PREFETCH_GROUPS = 1
"""Groups of steps that lie ready while the next one is packed."""

PLANNED_STEPS = 64
"""Steps planned by one call: what numpy's calls cost is shared by them."""

MAX_VISIT_STEPS = 512
"""A block stays from one visit of its lane to the next if that comes within so many steps."""


@dataclass(frozen=True)
class RankStep:
    """This rank's share of one global batch; the numbers count that share.

    Attributes:
        step: Steps taken before it.
        first_position: Stream position of the global batch's first instance.
        position_after: Position of the next batch's first instance, but for what is skipped there.
        micro_batches: At least one, in slot order.
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
        rank: Number of this process among the world_size that share every global batch.
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
                f"micro_tokens is {self.micro_tokens}: one instance may take all of seq_len"
                f" {seq_len}; raise it"
            )
        rank_slots(self.global_batch, self.rank, self.world_size)


class StepLoader:
    """Iterator over this rank's share of every step, without end.

    It does no communication between ranks. A background thread keeps steps ready. Leave it with
    `close()` or as a context manager; an abandoned one stops by itself, and none keeps the
    interpreter from exiting.

    Attributes:
        passes: What is known of the datasets.
        begin: The state that it began with.
        first_step: Steps taken before.
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
        mask_share: ShareAt | None = None,
    ) -> None:
        """Starts reading; `StepSizes` tells of sizes, docs/order.md of seed and lanes.

        It goes on after `state`, the `RankStep.state` of the last step taken, and counts steps from
        first_step. It ends after num_steps, those of other workers included. Stretches to `skip`
        come besides those of the state. With pin_memory steps lie where `to_device` copies from to
        a GPU without waiting. With mask_share masks are drawn anew. A ValueError refuses sizes that
        do not fit and another stream's state.
        """
        sizes = StepSizes(rank, world_size, global_batch, micro_tokens, worker, num_workers)
        sizes.check(seq_len)
        mixture = one_dataset(data) if isinstance(data, Dataset) else data
        self._stop = stop = threading.Event()
        wait_policy = replace(wait_policy or WaitPolicy(), stop=stop)
        self.passes = KnownPasses(mixture, split, seq_len, wait_policy)
        self.begin = _begin(self.passes, seed, num_lanes, global_batch, state).skipping(skip)
        self.reads = reader = BlockReader(self.passes.shards, reading or Reading())
        self.first_step, end = first_step, None if num_steps is None else first_step + num_steps
        redraw = None
        if mask_share is not None:
            datasets = [each.dataset for each in mixture]
            redraw = MaskRedraw(datasets, seq_len, self.begin.seed, mask_share)
        steps = _Steps(self.passes, self.begin, sizes, redraw, first_step, end)
        self._ready: queue.Queue[list[RankStep] | BaseException] = queue.Queue(PREFETCH_GROUPS)
        self._taken: deque[RankStep] = deque()
        self._failure: BaseException | None = None
        work = steps.read(reader, pin_memory), self._ready, stop
        self._thread = threading.Thread(target=_hand_over, args=work, daemon=True, name="prefetch")
        self._finalizer = weakref.finalize(self, _close, stop, reader, self._thread, self._ready)
        self._thread.start()

    def __iter__(self) -> Iterator[RankStep]:
        return self

    def __next__(self) -> RankStep:
        """The next step; a FileNotFoundError or ShardReadError where it cannot be read."""
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
        rows, _ = plan_steps(order, [step.first_position], global_batch, 0, 1, whole)
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
    weights = [each.weight for each in then.datasets]
    same = weights if len(weights) == len(passes.mixture) else None
    now = passes.state(then.position, seed, num_lanes or then.num_lanes, then.skipped, same)
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
    """Stops all threads. One that waits to put something goes on, as room is made."""
    stop.set()
    reader.close()
    while not ready.empty():
        ready.get_nowait()
    if thread is not threading.current_thread():  # which may collect the garbage that closes it
        thread.join(1.0)
        while not ready.empty():  # an error holds the frames it came through
            ready.get_nowait()


class _Steps:
    """The steps of a rank, or of one of its workers: planned, read and packed."""

    def __init__(
        self,
        passes: KnownPasses,
        begin: StreamState,
        sizes: StepSizes,
        redraw: MaskRedraw | None,
        first: int,
        end: int | None,
    ) -> None:
        """Steps first to end - 1 of a stream, all that follow without an end."""
        self._redraw = redraw
        self._passes, self._begin, self._sizes, self._end = passes, begin, sizes, end
        self._first = self._step = first
        self._position = begin.position

    def read(self, reader: BlockReader, pin_memory: bool) -> Iterator[list[RankStep]]:
        """The steps, those together that are packed together."""
        while self._end is None or self._step < self._end:
            self._passes.wait_for(self._next_positions()[1])
            for planned, block in reader.steps(self.plan(), self.min_steps()):
                yield self._pack(planned, block, pin_memory)

    def plan(self) -> Iterator[PlannedStep]:
        """What this process reads of its next steps as far as the order is known."""
        sizes, order = self._sizes, self._passes.order(self._begin)
        share = sizes.global_batch, sizes.rank, sizes.world_size
        block_size = block_instances(self._passes.seq_len)
        while found := [*islice(self._known_steps(), PLANNED_STEPS)]:
            rows, ends = plan_steps(order, [first for _, first, _ in found], *share, block_size)
            columns = self._passes.shard_index(rows), rows.block, rows.start, rows.stop
            for facts, bounds in zip(found, pairwise(ends.tolist()), strict=True):
                part = slice(*bounds)
                shard, block, start, stop = (each[part] for each in columns)
                yield plan_rows(shard, block, start, stop, (*facts, rows.dataset[part]))

    def _known_steps(self) -> Iterator[tuple[int, int, int]]:
        """Next steps of this process, each with its first position and the one after its last."""
        sizes = self._sizes
        while self._end is None or self._step < self._end:
            first, after = self._next_positions()
            if not self._passes.reaches(after):
                return
            step, self._step, self._position = self._step, self._step + 1, after
            if (step - self._first) % sizes.num_workers == sizes.worker:
                yield step, first, after

    def min_steps(self) -> int:
        """Steps until every lane of the rarest dataset was visited: so long a block must live."""
        weights, num_lanes = self._passes.weights, self._begin.num_lanes
        visits = -(-num_lanes * sum(weights) // (self._sizes.global_batch * min(weights)))
        return min(MAX_VISIT_STEPS, visits + 1)

    def _next_positions(self) -> tuple[int, int]:
        """The next step's first position, and the one after its last."""
        size = self._sizes.global_batch
        stretches = next_stretches(self._begin.skipped, self._position, size)
        return stretches[0][0], stretches[-1][1]

    def _pack(
        self, planned: Sequence[PlannedStep], block: Block, pin_memory: bool
    ) -> list[RankStep]:
        """Steps of which the instances lie one after another in a block."""
        bounds = np.cumsum([0, *(each.num_rows for each in planned)])
        if self._redraw is not None:
            sizes = self._sizes
            slot, _ = rank_slots(sizes.global_batch, sizes.rank, sizes.world_size)
            runs = [(each.facts[0], each.facts[1] + slot, each.num_rows) for each in planned]
            block = self._redraw(block, runs)
        tokens, masked = block.offsets[bounds].tolist(), block.masked_offsets[bounds].tolist()
        drawn = self._count_drawn(planned, block.offsets)
        cuts = [
            balance_micro_batches(block.offsets, rows, self._sizes.micro_tokens)
            for rows in pairwise(bounds.tolist())
        ]
        micro_batches = iter(pack_micro_batches(block, [*chain(*cuts)], pin_memory))
        steps = []
        for number, each in enumerate(planned):
            step, first, after, _ = each.facts
            steps.append(
                RankStep(
                    step=step,
                    first_position=first,
                    position_after=after,
                    micro_batches=list(islice(micro_batches, len(cuts[number]))),
                    num_instances=each.num_rows,
                    num_tokens=tokens[number + 1] - tokens[number],
                    num_masked=masked[number + 1] - masked[number],
                    drawn=drawn[number],
                    begin=self._begin,
                    passes=self._passes,
                )
            )
        return steps

    def _count_drawn(
        self, planned: Sequence[PlannedStep], offsets: Array
    ) -> list[tuple[tuple[int, int], ...]]:
        """Instances and tokens of every dataset in each step."""
        num_rows = np.concatenate([each.stop - each.start for each in planned])
        ends = np.cumsum(num_rows)
        num_tokens = offsets[ends] - offsets[ends - num_rows]
        shape = len(planned), len(self._passes.mixture)
        step = np.repeat(np.arange(len(planned)), [len(each.keys) for each in planned])
        place = step * shape[1] + np.concatenate([each.facts[-1] for each in planned])
        counts = [np.bincount(place, each, np.prod(shape)) for each in (num_rows, num_tokens)]
        found = np.stack(counts, axis=-1).astype(int).reshape(*shape, 2)
        return [tuple(map(tuple, each)) for each in found.tolist()]
