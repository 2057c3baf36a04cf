"""One rank's share of every optimizer step, read in the background (docs/order.md)."""

import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.shards.block import block_instances
from pipeline.shards.dataset import Dataset
from pipeline.storage.patience import Patience
from trainer.stream.known import KnownPasses
from trainer.stream.order import Stretch
from trainer.stream.packing import MicroBatch, empty_micro_batch
from trainer.stream.prefetch import Prefetcher
from trainer.stream.rank_steps import RankStep, RankSteps, StepSizes
from trainer.stream.read_settings import ReadSettings
from trainer.stream.share import default_num_lanes, rank_runs
from trainer.stream.source import Mixture, one_dataset
from trainer.stream.state import StreamState, parse_state, refuse_other_stream

__all__ = ["MicroBatch", "RankStep", "StepLoader", "empty_micro_batch"]

PREFETCH_GROUPS = 1
"""Groups of steps that lie ready while the next one is packed."""


class StepLoader:
    """Iterator over this rank's share of every step, without end. It does no communication between ranks.

    A background thread keeps some steps ready, of small ones thousands. Leave it with `close()` or as a context
    manager; an abandoned one stops by itself, and none keeps the interpreter from exiting.

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
        reading: ReadSettings | None = None,
        pin_memory: bool = False,
        patience: Patience | None = None,
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
            seed: Of the order of shards.
            state: `RankStep.state` of the last step taken, to continue after it; None begins at position 0.
            first_step: Steps taken before, for `RankStep.step`.
            num_steps: Ends, and reads nothing, after so many steps, those of other workers included.
            num_lanes: K, where the default is not wanted; a state has its own.
            skip: Stretches of positions to leave out, besides those of the state.
            reading: Memory, threads and patience.
            pin_memory: Lays steps into pinned memory, from which `to_device` copies to a GPU without waiting.
            patience: With builds that are still running.
            worker: As in StepSizes.
            num_workers: As in StepSizes.

        Raises:
            ValueError: Sizes that do not fit together, or a state of other data, another seed or number of lanes.
            FileNotFoundError: Patience ended.
        """
        sizes = StepSizes(rank, world_size, global_batch, micro_tokens, worker, num_workers)
        sizes.check(seq_len)
        mixture = one_dataset(data) if isinstance(data, Dataset) else data
        patience = replace(patience or Patience(), stop=threading.Event())
        self.passes = KnownPasses(mixture, split, seq_len, patience)
        begin = _begin(self.passes, seed, num_lanes, global_batch, state).skipping(skip)
        rank_steps = RankSteps(self.passes, begin, sizes, reading or ReadSettings(), pin_memory)
        self._steps = Prefetcher(rank_steps.groups(first_step, num_steps), PREFETCH_GROUPS)
        self._finalizer = weakref.finalize(self, _close, self._steps, rank_steps, patience.stop)
        self.num_lanes = begin.num_lanes
        self.reads = rank_steps.counts
        self.wait_seconds = 0.0

    def __iter__(self) -> Iterator[RankStep]:
        return self

    def __next__(self) -> RankStep:
        """The next step.

        Raises:
            FileNotFoundError: A shard is missing, or patience with a build ended.
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
        shards = [self.passes.store.locate(self.passes.shards[n].name) for n in self.passes.shard_index(runs)]
        return [f"{shard}:{start}-{stop}" for shard, start, stop in zip(shards, runs.start, runs.stop, strict=True)]

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
    passes: KnownPasses, seed: int, num_lanes: int | None, global_batch: int, state: Mapping[str, Any] | None
) -> StreamState:
    """Where the stream begins or goes on."""
    if state is None:
        block_size = block_instances(passes.seq_len)
        lanes = num_lanes or default_num_lanes(global_batch, passes.first_pass_instances, block_size)
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
