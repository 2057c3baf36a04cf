"""Plans, reads and packs one rank's share of every step, in the background (docs/order.md)."""

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
from trainer.stream.batches.redraw import MaskRedraw, ShareAt, StepInstances
from trainer.stream.known import KnownPasses
from trainer.stream.left_out import LeftOutDocuments
from trainer.stream.order.order import Stretch
from trainer.stream.order.share import default_num_lanes, plan_steps, rank_slots
from trainer.stream.order.source import Mixture, one_dataset
from trainer.stream.order.state import StreamState, parse_state, refuse_other_stream
from trainer.stream.reading.block_reader import BlockReader, PlannedStep, block_keys
from trainer.stream.reading.settings import Reading

PREFETCH_GROUPS = 1
"""Groups of steps that are kept ready while the next group is packed."""

PLANNED_STEPS = 64
"""Steps planned by one call, which share the cost of numpy's calls."""

MAX_VISIT_STEPS = 512
"""A block stays in memory until its lane is visited again if that takes at most this many steps."""

_WHOLE_SHARD = 2**40
"""A number of instances per block that is above that of any shard: no shard is cut."""


@dataclass(frozen=True)
class RankStep:
    """One rank's share of the instances of one step.

    A step takes one global batch of the stream, and every rank has a share of it. `num_instances`,
    `num_tokens`, `num_masked` and `drawn` count this rank's share.

    Example:
        ```python
        for step in planned_steps("data", "train", 128, **sizes):
            for batch in step.micro_batches:
                sums = forward_sums(model, batch, torch.device("cpu"))
                (sums.mlm_nll / step.num_masked).backward()
            optimizer.step()
            optimizer.zero_grad()
            state = step.state  # planned_steps(..., state=state) goes on after this step
        ```

    Attributes:
        step: Number of the step; the first step of a run is 0.
        first_position: Stream position of the global batch's first instance.
        position_after: Stream position after the global batch's last instance. The next step
            begins there, unless positions are skipped.
        micro_batches: The instances, in slot order, in at least one micro-batch.
        num_instances: Number of instances.
        num_tokens: Number of tokens, [CLS] and [SEP] included.
        num_masked: Number of masked tokens.
        drawn: For each dataset of the mixture, the number of instances and the number of tokens
            that come from it.
        begin: The state that the stream began with.
        passes: The passes of the datasets. None if the step was read in another process, which has
            sent `state` and `epochs` instead.
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
        """The stream's state after this step, as plain values for JSON of at most 1 kB."""
        after = self.position_after
        return replace(self.begin, position=after, datasets=self.passes.describe(after)).to_dict()

    @cached_property
    def epochs(self) -> tuple[float, ...]:
        """Number of passes of each dataset that are read after this step, such as 2.25."""
        return self.passes.epochs(self.position_after)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes that are sent to another process.

        `passes` is replaced by None, and `state` and `epochs`, which are computed from it, are
        added.
        """
        return {**vars(self), "state": self.state, "epochs": self.epochs, "passes": None}


@dataclass(frozen=True)
class StepSizes:
    """How global batches are shared by ranks and workers, and cut into micro-batches.

    Every number may change when a run goes on from a saved state. The order of the instances in the
    stream does not depend on them (docs/order.md).

    Example:
        ```python
        sizes = StepSizes(rank=0, world_size=8, global_batch=256, micro_tokens=16_384)
        sizes.check(seq_len=128)
        ```

    Attributes:
        rank: Number of this process among those that share every global batch, from 0.
        world_size: Number of processes that share every global batch.
        global_batch: Instances of a step over all ranks, at least `world_size`.
        micro_tokens: The most tokens of a micro-batch, at least `seq_len`.
        worker: Number of this process among the workers that read for the rank, from 0.
        num_workers: Number of processes that read for the rank. Worker w reads the rank's steps w,
            w + num_workers, w + 2 num_workers, ...
    """

    rank: int
    world_size: int
    global_batch: int
    micro_tokens: int
    worker: int = 0
    num_workers: int = 1

    def check(self, seq_len: int) -> None:
        """Raises a ValueError if an instance may not fit a micro-batch, or a rank gets no instance.

        Args:
            seq_len: The length of the instances.
        """
        if self.micro_tokens < seq_len:
            raise ValueError(
                f"micro_tokens is {self.micro_tokens}: one instance may take all of seq_len"
                f" {seq_len}; raise it"
            )
        rank_slots(self.global_batch, self.rank, self.world_size)


@dataclass(frozen=True)
class StreamPlan:
    """Which stream is read, where reading begins and where it ends.

    Attributes:
        seed: Seed of the order (docs/order.md) and of masks drawn anew.
        state: The `RankStep.state` after which to go on. None begins a new stream.
        first_step: Number of the first step. Steps are numbered from there.
        num_steps: Number of steps to read, over all workers of the rank; None means without end.
        num_lanes: The number of lanes of a new stream; None chooses it (docs/order.md). A stream
            that goes on keeps its number, and refuses another.
        skip: Stretches of positions that no step takes, added to those of `state`.
        leave_out: Documents whose instances no step takes; the list of `state` must be its
            beginning.
        mask_share: Draws masks anew: it takes the number of a step and returns the share of tokens
            to mask. None keeps the masks of the build.
    """

    seed: int
    state: Mapping[str, Any] | None = None
    first_step: int = 0
    num_steps: int | None = None
    num_lanes: int | None = None
    skip: Sequence[Stretch] = ()
    leave_out: LeftOutDocuments | None = None
    mask_share: ShareAt | None = None

    @property
    def end_step(self) -> int | None:
        """One past the number of the last step; None if there is no end."""
        return None if self.num_steps is None else self.first_step + self.num_steps


class StepLoader:
    """An iterator over one rank's share of every step, in the order of docs/order.md.

    It does not communicate with other ranks. A background thread keeps steps ready. Reading ends
    with `close()`, at the end of a `with` block, or when the loader is no longer referenced. Its
    threads do not keep the interpreter from exiting.

    Attributes:
        passes: The passes of the datasets that are known.
        begin: The state that the stream began with.
        first_step: Number of the first step.
        reads: The reader, which counts requests, blocks and bytes asked for so far.
    """

    def __init__(
        self,
        data: Dataset | Mixture,
        split: str,
        seq_len: int,
        sizes: StepSizes,
        plan: StreamPlan,
        *,
        reading: Reading | None = None,
        wait_policy: WaitPolicy | None = None,
        pin_memory: bool = False,
    ) -> None:
        """Opens the stream and starts to read.

        Args:
            data: An opened dataset, or an opened mixture.
            split: The split to read, such as "train".
            seq_len: The length of the instances to read.
            sizes: How global batches are shared and cut.
            plan: Which steps to read.
            reading: How to read shards; None takes the defaults.
            wait_policy: How long to wait for passes that are being built; None takes the defaults.
            pin_memory: Whether to put steps into pinned memory, from which `to_device` copies to a
                GPU without waiting.

        Raises:
            ValueError: The sizes do not fit together, the state is that of another stream, or a
                dataset does not fit.
            FileNotFoundError: The wait for a pass ended.
        """
        sizes.check(seq_len)
        mixture = one_dataset(data) if isinstance(data, Dataset) else data
        self._stop = threading.Event()
        wait_policy = replace(wait_policy or WaitPolicy(), stop=self._stop)
        self.passes = KnownPasses(mixture, split, seq_len, wait_policy, plan.leave_out)
        begin = _find_begin(self.passes, plan, sizes.global_batch).skipping(plan.skip)
        self.begin = self.passes.leave_out(begin)
        self.first_step = plan.first_step
        self.reads = BlockReader(self.passes.shards, reading or Reading())
        redraw = None
        if plan.mask_share is not None:
            datasets = [source.dataset for source in mixture]
            redraw = MaskRedraw(datasets, seq_len, self.begin.seed, plan.mask_share)
        steps = _Steps(self.passes, self.begin, sizes, redraw, plan.first_step, plan.end_step)

        self._ready: queue.Queue[list[RankStep] | BaseException] = queue.Queue(PREFETCH_GROUPS)
        self._taken: deque[RankStep] = deque()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(
            target=_hand_over,
            args=(steps.read(self.reads, pin_memory), self._ready, self._stop),
            daemon=True,
            name="prefetch",
        )
        self._finalizer = weakref.finalize(
            self, _close, self._stop, self.reads, self._thread, self._ready
        )
        self._thread.start()

    def __iter__(self) -> Iterator[RankStep]:
        return self

    def __next__(self) -> RankStep:
        """Returns the next step.

        Raises:
            FileNotFoundError: A shard is missing, or the wait for a pass ended.
            ShardReadError: Bytes could not be read, or do not match the dataset's tables.
            ValueError: The loader is closed, or a block is malformed.
        """
        if self._stop.is_set():
            raise ValueError("the stream is closed")
        while not self._taken:
            if self._failure is not None:
                raise self._failure
            group = self._ready.get()
            if isinstance(group, BaseException):
                self._failure = group
            else:
                self._taken.extend(group)
        return self._taken.popleft()

    @property
    def is_ready(self) -> bool:
        """Whether `next` would return a step, or raise, without waiting."""
        return bool(self._taken) or self._failure is not None or not self._ready.empty()

    def name_rows(self, step: RankStep, global_batch: int) -> list[str]:
        """Returns the ranges of rows that a step's whole global batch takes, over all ranks.

        Args:
            step: A step of this loader.
            global_batch: Instances of the step over all ranks.

        Returns:
            For each range a text SHARD:START-STOP: the URL of the shard, the first row, and one
            past the last row.
        """
        order = self.passes.order(self.begin)
        rows, _ = plan_steps(
            order,
            [step.first_position],
            global_batch,
            rank=0,
            world_size=1,
            block_size=_WHOLE_SHARD,
        )
        shards = (self.passes.shards[index] for index in self.passes.shard_index(rows))
        return [
            f"{dataset.locate(shard.name)}:{start}-{stop}"
            for (dataset, shard), start, stop in zip(shards, rows.start, rows.stop, strict=True)
        ]

    def __enter__(self) -> "StepLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops reading; waits at most some two seconds for requests that are on their way."""
        self._finalizer()


def _find_begin(passes: KnownPasses, plan: StreamPlan, global_batch: int) -> StreamState:
    """Returns the state that a stream begins with, or goes on from.

    Raises:
        ValueError: The plan's state is malformed, or that of another stream.
    """
    if plan.state is None:
        num_lanes = plan.num_lanes or default_num_lanes(
            global_batch, passes.first_pass_instances, block_instances(passes.seq_len)
        )
        return passes.state(0, plan.seed, num_lanes)
    then = parse_state(plan.state)
    passes.wait_for(then.position)
    # The datasets are compared at the places where the saved weights put them. Other weights are
    # then named as the only difference, not together with other contents.
    saved_weights = [dataset.weight for dataset in then.datasets]
    now = passes.state(
        then.position,
        plan.seed,
        plan.num_lanes or then.num_lanes,
        then.skipped,
        saved_weights if len(saved_weights) == len(passes.mixture) else None,
    )
    refuse_other_stream(then, now, [source.name for source in passes.mixture])
    return then


def _hand_over(
    groups: Iterator[list[RankStep]],
    ready: "queue.Queue[list[RankStep] | BaseException]",
    stop: threading.Event,
) -> None:
    """Puts groups of steps into a queue until it is told to stop; runs in the background thread.

    An error, or a StopIteration after the last group, goes into the queue as well. The function has
    no reference to the loader, so that a loader that is dropped can be collected.
    """
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
    """Stops all threads of a loader.

    The background thread may be waiting to put steps into the queue `ready`. The queue is emptied,
    so that this thread goes on and ends.
    """
    stop.set()
    reader.close()
    while not ready.empty():
        ready.get_nowait()
    # The garbage collector may call this in the thread itself.
    if thread is not threading.current_thread():
        thread.join(1.0)
        while not ready.empty():  # an error would keep alive the frames that it came through
            ready.get_nowait()


@dataclass(frozen=True)
class _StepPlace:
    """The positions of the stream that one step takes.

    Attributes:
        step: Number of the step.
        first_position: Stream position of the global batch's first instance.
        position_after: Stream position after the global batch's last instance.
    """

    step: int
    first_position: int
    position_after: int


@dataclass(frozen=True)
class _PlannedShare(PlannedStep):
    """The rows that one rank takes of a step, with what its `RankStep` needs.

    Attributes:
        place: Where the step is in the stream.
        dataset: Index of the dataset of each range of rows, int64 [R].
    """

    place: _StepPlace
    dataset: Array


class _Steps:
    """Plans, reads and packs the steps of a rank, or of one worker that reads for the rank.

    `read` is the iterator over these steps; the other methods are its parts.
    """

    def __init__(
        self,
        passes: KnownPasses,
        begin: StreamState,
        sizes: StepSizes,
        redraw: MaskRedraw | None,
        first_step: int,
        end_step: int | None,
    ) -> None:
        """Keeps what the steps are made from; `read` begins to read.

        Args:
            passes: The passes of the datasets.
            begin: The state to begin with.
            sizes: How global batches are shared and cut.
            redraw: Draws masks anew; None keeps those of the build.
            first_step: Number of the first step.
            end_step: One past the number of the last step; None means without end.
        """
        self._passes = passes
        self._begin = begin
        self._sizes = sizes
        self._redraw = redraw
        self._first_step = first_step
        self._end_step = end_step
        # The next step to plan, over all workers of the rank.
        self._step = first_step
        self._position = begin.position

    def read(self, reader: BlockReader, pin_memory: bool) -> Iterator[list[RankStep]]:
        """Yields the steps in order, in lists of one or more.

        The rows of a list are read and packed together. The iterator is lazy, and waits for passes
        that are being built.

        Args:
            reader: Reads the blocks.
            pin_memory: Whether to put steps into pinned memory.
        """
        while self._end_step is None or self._step < self._end_step:
            self._next_positions(may_wait=True)
            for planned, block in reader.steps(self._plan(), self._min_steps()):
                yield self._pack(planned, block, pin_memory)

    def _plan(self) -> Iterator[_PlannedShare]:
        """Yields this process's share of each of its next steps, as rows to read.

        It ends before the first step that needs a pass that is still being built.
        """
        sizes = self._sizes
        order = self._passes.order(self._begin)
        while places := [*islice(self._known_places(), PLANNED_STEPS)]:
            rows, step_bounds = plan_steps(
                order,
                [place.first_position for place in places],
                sizes.global_batch,
                sizes.rank,
                sizes.world_size,
                block_instances(self._passes.seq_len),
            )
            shard = self._passes.shard_index(rows)
            for place, (first, last) in zip(places, pairwise(step_bounds.tolist()), strict=True):
                start = rows.start[first:last]
                stop = rows.stop[first:last]
                yield _PlannedShare(
                    keys=block_keys(shard[first:last], rows.block[first:last]),
                    start=start,
                    stop=stop,
                    num_rows=int((stop - start).sum()),
                    place=place,
                    dataset=rows.dataset[first:last],
                )

    def _known_places(self) -> Iterator[_StepPlace]:
        """Yields the positions of this process's next steps.

        It ends after the last step, or before the first step that needs a pass that is not known
        yet. Steps of other workers are counted and passed over.
        """
        sizes = self._sizes
        while self._end_step is None or self._step < self._end_step:
            positions = self._next_positions(may_wait=False)
            if positions is None:
                return
            first_position, position_after = positions
            step = self._step
            self._step += 1
            self._position = position_after
            if (step - self._first_step) % sizes.num_workers == sizes.worker:
                yield _StepPlace(step, first_position, position_after)

    def _min_steps(self) -> int:
        """Returns the least number of steps to read ahead.

        It is the number of steps after which each lane of the dataset with the smallest weight has
        been visited again. A block then stays in memory from one visit of its lane to the next. The
        number is at most MAX_VISIT_STEPS.
        """
        weights = self._passes.weights
        num_lanes = self._begin.num_lanes
        visits = -(-num_lanes * sum(weights) // (self._sizes.global_batch * min(weights)))
        return min(MAX_VISIT_STEPS, visits + 1)

    def _next_positions(self, *, may_wait: bool) -> tuple[int, int] | None:
        """Returns the position of the next step's first instance, and the one after its last.

        Args:
            may_wait: Whether to wait for passes that are being built. Otherwise the result is None
                if the step needs one.
        """
        stretches = self._passes.next_stretches(
            self._begin, self._position, self._sizes.global_batch, may_wait=may_wait
        )
        return None if stretches is None else (stretches[0][0], stretches[-1][1])

    def _pack(
        self, planned: Sequence[_PlannedShare], block: Block, pin_memory: bool
    ) -> list[RankStep]:
        """Packs the instances of steps into micro-batches.

        Args:
            planned: The steps.
            block: The instances of all these steps, one step after another.
            pin_memory: Whether to put the micro-batches into pinned memory.
        """
        if self._redraw is not None:
            block = self._redraw(block, self._instances_of(planned))
        row_bounds = np.cumsum([0, *(share.num_rows for share in planned)])
        num_tokens = np.diff(block.offsets[row_bounds]).tolist()
        num_masked = np.diff(block.masked_offsets[row_bounds]).tolist()
        drawn = self._count_drawn(planned, block.offsets)
        cuts_of_steps = [
            balance_micro_batches(block.offsets, rows, self._sizes.micro_tokens)
            for rows in pairwise(row_bounds.tolist())
        ]
        all_cuts = list(chain.from_iterable(cuts_of_steps))
        micro_batches = iter(pack_micro_batches(block, all_cuts, pin_memory))
        return [
            RankStep(
                step=share.place.step,
                first_position=share.place.first_position,
                position_after=share.place.position_after,
                micro_batches=list(islice(micro_batches, len(cuts_of_steps[index]))),
                num_instances=share.num_rows,
                num_tokens=num_tokens[index],
                num_masked=num_masked[index],
                drawn=drawn[index],
                begin=self._begin,
                passes=self._passes,
            )
            for index, share in enumerate(planned)
        ]

    def _instances_of(self, planned: Sequence[_PlannedShare]) -> list[StepInstances]:
        """Returns for each step the numbers that this rank's instances have in the stream.

        The instance in slot s of the global batch at position g0 has the number g0 + s
        (docs/order.md, "Masks drawn anew").
        """
        sizes = self._sizes
        first_slot, _ = rank_slots(sizes.global_batch, sizes.rank, sizes.world_size)
        return [
            StepInstances(
                step=share.place.step,
                first_number=share.place.first_position + first_slot,
                num_instances=share.num_rows,
            )
            for share in planned
        ]

    def _count_drawn(
        self, planned: Sequence[_PlannedShare], offsets: Array
    ) -> list[tuple[tuple[int, int], ...]]:
        """Counts this rank's instances and tokens of every dataset in each step.

        Args:
            planned: S steps.
            offsets: Cumulative tokens of the instances of all steps, one step after another, [N+1].

        Returns:
            For each step and each dataset a pair: the number of instances, and the number of
            tokens.
        """
        num_steps = len(planned)
        num_datasets = len(self._passes.mixture)
        num_rows_R = np.concatenate([share.stop - share.start for share in planned])
        ends_R = np.cumsum(num_rows_R)
        num_tokens_R = offsets[ends_R] - offsets[ends_R - num_rows_R]
        step_R = np.repeat(np.arange(num_steps), [len(share.keys) for share in planned])
        cell_R = step_R * num_datasets + np.concatenate([share.dataset for share in planned])

        num_cells = num_steps * num_datasets
        instances = np.bincount(cell_R, num_rows_R, num_cells).astype(int)
        tokens = np.bincount(cell_R, num_tokens_R, num_cells).astype(int)
        pairs = list(zip(instances.tolist(), tokens.tolist(), strict=True))
        return [
            tuple(pairs[start : start + num_datasets])
            for start in range(0, num_cells, num_datasets)
        ]
