"""One rank's share of every optimizer step, read in the background (docs/order.md)."""

import contextlib
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from pipeline.shards.block import block_instances
from pipeline.shards.dataset import Dataset
from pipeline.shards.growing import WaitPolicy
from trainer.order.known import KnownPasses
from trainer.order.order import Stretch
from trainer.order.share import default_num_lanes, rank_runs
from trainer.order.source import Mixture, one_dataset
from trainer.order.state import StreamState, parse_state, refuse_other_stream
from trainer.reading.settings import Reading
from trainer.stream.rank_steps import RankStep, RankSteps, StepSizes

PREFETCH_GROUPS = 1
"""Groups of steps that lie ready while the next one is packed."""

Item = TypeVar("Item")


class Prefetcher(Generic[Item]):
    """Keeps up to `depth` groups of items ready, in order.

    Exceptions are raised where they would have been. Items come in groups because handing over from
    thread to thread costs as much as packing a small step. The thread is a daemon that knows
    nothing of who consumes, so an abandoned consumer can be collected and close it.
    """

    def __init__(self, groups: Iterator[Sequence[Item]], depth: int) -> None:
        self._ready: queue.Queue[tuple[Sequence[Item], BaseException | None]] = queue.Queue(depth)
        self._taken: deque[Item] = deque()
        self._closed = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, args=(groups,), daemon=True, name="prefetch"
        )
        self._thread.start()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if self._closed.is_set():
            raise ValueError("the stream is closed")
        while not self._taken:
            if self._failure is not None:
                raise self._failure
            group, self._failure = self._ready.get()
            self._taken.extend(group)
        return self._taken.popleft()

    @property
    def is_ready(self) -> bool:
        """Whether the next item, or what was raised in its place, is there."""
        return bool(self._taken) or self._failure is not None or not self._ready.empty()

    def close(self, seconds: float = 1.0) -> None:
        """Stops the thread, waiting at most `seconds` for what it is doing."""
        self._closed.set()
        if (
            self._thread is threading.current_thread()
        ):  # which may collect the garbage that closes it
            return
        while self._thread.is_alive() and seconds > 0:
            self._drain()
            self._thread.join(0.01)
            seconds -= 0.01
        self._drain()  # an error holds the frames it came through, and they this

    def _run(self, groups: Iterator[Sequence[Item]]) -> None:
        try:
            for group in groups:
                self._hand_over(group, None)
                if self._closed.is_set():
                    return
            self._hand_over((), StopIteration())
        except BaseException as error:  # noqa: BLE001 - raised in the consumer's thread
            self._hand_over((), error)
        finally:
            if isinstance(groups, Generator):
                groups.close()

    def _hand_over(self, group: Sequence[Item], failure: BaseException | None) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._ready.put((group, failure), timeout=0.2)
                return

    def _drain(self) -> None:
        try:
            while True:
                self._ready.get_nowait()
        except queue.Empty:
            pass


class StepLoader:
    """Iterator over this rank's share of every step, without end.

    It does no communication between ranks. A background thread keeps some steps ready, of small
    ones thousands. Leave it with `close()` or as a context manager; an abandoned one stops by
    itself, and none keeps the interpreter from exiting.

    Attributes:
        passes: What is known of the datasets.
        num_lanes: K of this stream.
        reads: Requests, blocks and bytes asked for so far.
        wait_seconds: How long the last step was waited for.
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
        """Starts reading.

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
            pin_memory: Lays steps into pinned memory, from which `to_device` copies to a GPU
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
        wait_policy = replace(wait_policy or WaitPolicy(), stop=threading.Event())
        self.passes = KnownPasses(mixture, split, seq_len, wait_policy)
        begin = _begin(self.passes, seed, num_lanes, global_batch, state).skipping(skip)
        rank_steps = RankSteps(self.passes, begin, sizes, reading or Reading(), pin_memory)
        self._steps = Prefetcher(rank_steps.groups(first_step, num_steps), PREFETCH_GROUPS)
        self._finalizer = weakref.finalize(self, _close, self._steps, rank_steps, wait_policy.stop)
        self.num_lanes = begin.num_lanes
        self.reads = rank_steps.counts
        self.wait_seconds = 0.0

    def __iter__(self) -> Iterator[RankStep]:
        return self

    def __next__(self) -> RankStep:
        """The next step.

        Raises:
            FileNotFoundError: A shard is missing, or waiting for a build ended.
            ShardReadError: A shard could not be read in full; a ValueError.
        """
        began = time.monotonic()
        step = next(self._steps)
        self.wait_seconds = time.monotonic() - began
        return step

    def describe(self, step: RankStep, global_batch: int) -> list[str]:
        """Instances of a step's global batch, of all ranks, as SHARD:START-STOP."""
        then = parse_state(step.state)
        order = self.passes.order(then.seed, then.num_lanes, then.skipped)
        runs = rank_runs(order, step.first_position, global_batch, 0, 1)
        shards = [
            self.passes.store.locate(self.passes.shards[n].name)
            for n in self.passes.shard_index(runs)
        ]
        return [
            f"{shard}:{start}-{stop}"
            for shard, start, stop in zip(shards, runs.start, runs.stop, strict=True)
        ]

    @property
    def is_ready(self) -> bool:
        """Whether the next step, or what will be raised in its place, is there."""
        return self._steps.is_ready

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
        block_size = block_instances(passes.seq_len)
        lanes = num_lanes or default_num_lanes(
            global_batch, passes.first_pass_instances, block_size
        )
        return passes.state(0, seed, lanes)
    then = parse_state(state)
    passes.wait_for(then.position)
    now = passes.state_like(then, seed, num_lanes or then.num_lanes)
    refuse_other_stream(then, now, [each.name for each in passes.mixture])
    return then


def _close(steps: Prefetcher[RankStep], rank_steps: RankSteps, stop: threading.Event) -> None:
    stop.set()
    rank_steps.close()
    steps.close()
