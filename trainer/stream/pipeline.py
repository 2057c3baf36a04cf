"""Offers the steps of training as a `webdataset.DataPipeline`, which `pretrain` reads too.

docs/library.md shows it in a plain loop, with `torchrun`, with Lightning and with the Trainer of
Hugging Face.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, cast

import numpy as np
import webdataset
from torch.utils.data import get_worker_info

from pipeline.shards.block import decode_block
from pipeline.shards.dataset import Dataset
from pipeline.shards.growing import WaitPolicy
from trainer.stream.batches.redraw import ShareAt
from trainer.stream.left_out import LeftOutDocuments
from trainer.stream.order.order import Stretch
from trainer.stream.order.source import Mixture, open_mixture
from trainer.stream.reading.settings import Reading
from trainer.stream.step import RankStep, StepLoader, StepSizes, StreamPlan

Stage = Callable[[Iterator[Any]], Iterable[Any]]


def planned_steps(
    data: str | Sequence[str] | Dataset | Mixture,
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
    leave_out: LeftOutDocuments | None = None,
    mask_share: ShareAt | None = None,
    storage_options: Mapping[str, Any] | None = None,
    reading: Reading | None = None,
    wait_policy: WaitPolicy | None = None,
    pin_memory: bool = False,
) -> "PlannedSteps":
    """Returns a pipeline over one rank's share of every step, in the order of docs/order.md.

    Each sample is a `RankStep`. The pipeline is lazy: it opens the data and begins to read when it
    is iterated. It never ends unless `num_steps` is given.

    Example:
        ```python
        sizes = {"rank": 0, "world_size": 1, "global_batch": 256, "micro_tokens": 16_384}
        steps = planned_steps("data", "train", 128, **sizes, seed=0)
        with iter(steps) as samples:
            step = next(samples)
        print(step.num_instances, [len(batch.input_ids) for batch in step.micro_batches])
        ```

    Args:
        data: A dataset's URL, or several `[NAME=]URL[:WEIGHT]` as `--data` takes them; or an opened
            dataset or mixture. Worker processes of a DataLoader need URLs.
        split: The split to read, such as "train".
        seq_len: The length of the instances to read.
        rank: Number of this process among those that share every global batch, from 0.
        world_size: Number of processes that share every global batch.
        global_batch: Instances of a step over all ranks, at least `world_size`.
        micro_tokens: The most tokens of a micro-batch, at least `seq_len`.
        seed: Seed of the order, and of masks drawn anew.
        state: The `RankStep.state` of the last step that was taken. Reading goes on after that
            step. None begins at the start.
        first_step: Number of the first step. It counts steps only; `state` says where to begin.
        num_steps: Number of steps, after which the pipeline ends.
        num_lanes: The number of lanes of a new stream; None takes the default of docs/order.md.
        skip: Stretches (start, stop) of stream positions that no step takes. They are added to
            those of `state`.
        leave_out: Documents whose instances no step takes. The split must be "train" then.
        mask_share: Draws masks anew as instances are read. It takes the number of a step, and
            returns the share of tokens to mask. None keeps the masks of the build.
        storage_options: Options of the filesystem of URLs, as fsspec takes them.
        reading: How to read shards: memory, threads, a cache on a local disk.
        wait_policy: Waits for datasets whose builds have not ended. None opens finished ones only.
        pin_memory: Whether to put micro-batches into pinned memory, from which `to_device` copies
            to a GPU without waiting.

    Raises:
        ValueError: Sizes do not fit together. While it is iterated: the data or the state do not
            fit, or a ShardReadError, which is one too, says that a shard cannot be read.
        FileNotFoundError: While it is iterated: a file is missing, or the wait for a build ended.
    """
    sizes = StepSizes(rank, world_size, global_batch, micro_tokens)
    sizes.check(seq_len)
    plan = StreamPlan(
        seed=seed,
        state=state,
        first_step=first_step,
        num_steps=num_steps,
        num_lanes=num_lanes,
        skip=skip,
        leave_out=leave_out,
        mask_share=mask_share,
    )
    opener = _LoaderOpener(
        data=[data] if isinstance(data, str) else data,
        split=split,
        seq_len=seq_len,
        sizes=sizes,
        plan=plan,
        storage_options=storage_options,
        reading=reading or Reading(),
        wait_policy=wait_policy,
        pin_memory=pin_memory,
    )
    return PlannedSteps(opener)


def iterate_rows(samples: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields one sample for each instance in shards, as a lazy stage of a webdataset pipeline.

    It only checks that each block is well-formed. `planned_steps` also checks the bytes of blocks,
    and keeps the order of docs/order.md.

    Example:
        ```python
        urls = sorted(glob("data/train/L128/pass-00/*.tar"))
        for row in webdataset.WebDataset(urls, shardshuffle=False).compose(iterate_rows):
            print(row["__key__"], row["input_ids"])
        ```

    Args:
        samples: Samples of `webdataset.WebDataset` over shards of a dataset: one for each block.

    Yields:
        A dict of numpy arrays for each instance of T tokens of which M are masked: `input_ids`
            [T] uint16 (uint32 for vocabularies over 65,536), `token_type_ids` [T] bool,
            `masked_lm_positions` [M] uint16, `masked_lm_ids` [M] as `input_ids`, and the bool
            `is_random_next`. `__key__` names shard, block and row:
            train/L128/pass-00/shard-00000/000003-017.

    Raises:
        ValueError: A block is damaged.
    """
    for sample in samples:
        url = sample["__url__"]
        key = sample["__key__"]
        block = decode_block(sample["arrow"], f"{url}, block {key}")
        shard = "/".join(url.split("/")[-4:]).removesuffix(".tar")
        for number in range(block.num_instances):
            row = block.slice(number, number + 1)
            yield {
                "__key__": f"{shard}/{key}-{number:03d}",
                "__url__": url,
                "input_ids": row.input_ids,
                "token_type_ids": np.arange(row.num_tokens) >= row.segment_a_length,
                "masked_lm_positions": row.masked_lm_positions,
                "masked_lm_ids": row.masked_lm_ids,
                "is_random_next": row.is_random_next[0],
            }


@dataclass(frozen=True)
class _LoaderOpener:
    """Opens the loader of a pipeline, in the process that iterates the pipeline.

    Attributes:
        data: Entries `[NAME=]URL[:WEIGHT]`, or a dataset or mixture that is open already.
        split: The split to read.
        seq_len: The length of the instances to read.
        sizes: How global batches are shared by ranks and cut.
        plan: Which steps to read.
        storage_options: Options of the filesystem of URLs.
        reading: How to read shards.
        wait_policy: How long to wait for builds that have not ended; None does not wait.
        pin_memory: Whether to put micro-batches into pinned memory.
    """

    data: Sequence[str] | Dataset | Mixture
    split: str
    seq_len: int
    sizes: StepSizes
    plan: StreamPlan
    storage_options: Mapping[str, Any] | None
    reading: Reading
    wait_policy: WaitPolicy | None
    pin_memory: bool

    def __call__(self, loaded: Mapping[str, Any]) -> StepLoader:
        """Opens a loader of the rank's steps.

        In a worker process of a DataLoader, the loader has only the worker's share of these steps.

        Args:
            loaded: The saved state from which to continue, as `PlannedSteps.state_dict` returned
                it. If it is empty, the loader begins where the plan begins.
        """
        sizes = self.sizes
        plan = self._plan_after(loaded)
        reading = replace(self.reading, rank=sizes.rank, num_ranks=sizes.world_size)
        pin_memory = self.pin_memory
        worker = get_worker_info()
        if worker is not None:
            if not self._has_urls:
                raise ValueError(
                    "opened datasets do not go to a DataLoader's workers: give planned_steps their"
                    " URLs"
                )
            buffer_bytes = max(1, reading.buffer_bytes // worker.num_workers)
            reading = replace(reading, buffer_bytes=buffer_bytes)
            # A worker's state is that after one of its own steps. The steps of all other workers
            # follow before its next one.
            number = worker.num_workers - 1 if loaded.get("workers") else worker.id
            sizes = replace(sizes, worker=number, num_workers=worker.num_workers)
            pin_memory = False  # memory is not pinned any more after the way to another process
        return StepLoader(
            self._open_data(),
            self.split,
            self.seq_len,
            sizes,
            plan,
            reading=reading,
            wait_policy=self.wait_policy,
            pin_memory=pin_memory,
        )

    @property
    def _has_urls(self) -> bool:
        """Whether the data are URLs, not opened datasets."""
        if isinstance(self.data, Dataset):
            return False
        return all(isinstance(entry, str) for entry in self.data)

    def _open_data(self) -> Dataset | Mixture:
        """Returns the data, which are opened first if they are URLs."""
        if not self._has_urls:
            return cast("Dataset | Mixture", self.data)
        entries = cast("Sequence[str]", self.data)
        return open_mixture(entries, self.storage_options, self.wait_policy)

    def _plan_after(self, loaded: Mapping[str, Any]) -> StreamPlan:
        """Returns the plan of the steps that follow a state of the pipeline.

        Args:
            loaded: The state, from `PlannedSteps.state_dict`. If it is empty, the pipeline's plan
                is returned.
        """
        plan = self.plan
        if not loaded:
            return plan
        first_step = loaded.get("step", plan.first_step)
        num_steps = plan.num_steps
        if num_steps is not None:
            num_steps = plan.first_step + num_steps - first_step
        return replace(plan, state=loaded, first_step=first_step, num_steps=num_steps)


class PlannedSteps(webdataset.DataPipeline, webdataset.FluidInterface):  # type: ignore[misc]
    """A webdataset pipeline over planned steps; `.map` and other methods add stages to it.

    Every iteration begins at the same state: the one that `load_state_dict` loaded last, or else
    the one that was given to `planned_steps`.

    In the worker processes of a DataLoader, worker w of n reads the steps w, w + n, w + 2n, ... A
    loader with `batch_size=None` takes samples from its workers in turn, so steps stay in order.
    This needs stages that make one sample of each step, which is checked.
    """

    _loaded: Mapping[str, Any] = {}
    _samples: "Samples | None" = None  # the last iteration

    def __iter__(self) -> "Samples":
        """Starts to read, and returns an iterator over the samples.

        Raises:
            ValueError: The pipeline has a `repeat` or `with_epoch`. Or the datasets are damaged, do
                not fit each other or the sizes of a step, or are not those of the state to go on
                from.
            FileNotFoundError: A dataset is missing, or the wait for a build ended.
        """
        if self.repetitions != 1:
            raise ValueError(
                "with_epoch and repeat would begin at the same step again: ask for num_steps"
            )
        open_loader, *stages = self.pipeline
        stages = [partial(self.invoke, stage) for stage in stages]
        self._samples = Samples(open_loader(self._loaded), stages, self._loaded)
        return self._samples

    def state_dict(self) -> dict[str, Any]:
        """Returns the state after the last sample that was returned, as plain values for JSON.

        The sample is that of the last iteration. If no iteration has begun since `load_state_dict`,
        the result is the state that was loaded. If stages make several samples of one step, the
        state also says how many of them were returned.
        """
        return dict(self._samples.state() if self._samples else self._loaded)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iterations begin after the sample at which a state was taken.

        Args:
            state: The result of `state_dict`. A state that was taken after a whole step can be
                loaded on any number of ranks. One that was taken between the samples of a step
                needs the same number of ranks.
        """
        self._loaded = dict(state)
        self._samples = None

    def __getstate__(self) -> dict[str, Any]:
        """Returns what is sent to a worker process: all attributes but the running iteration."""
        return {**vars(self), "_samples": None}


@dataclass
class _Progress:
    """How far an iteration has come, in steps taken from the loader and samples made of them.

    Attributes:
        before: The step that the stages took before `last`; None if there was none.
        last: The last step that the stages took; None if there was none.
        num_steps: Number of steps that the stages took.
        num_samples: Number of samples that the stages made.
        num_given: Number of samples that the stages made since they took `last`.
    """

    before: RankStep | None = None
    last: RankStep | None = None
    num_steps: int = 0
    num_samples: int = 0
    num_given: int = 0


class Samples(Iterator[Any]):
    """An iterator over the samples of one iteration of a pipeline.

    Reading ends with `close()`, at the end of a `with` block, or when both this object and the
    pipeline are no longer referenced.

    Attributes:
        loader: The loader whose steps the samples are made of.
    """

    def __init__(
        self, loader: StepLoader, stages: Sequence[Stage], loaded: Mapping[str, Any]
    ) -> None:
        """Chains the stages behind the loader.

        Args:
            loader: The steps.
            stages: Functions that take an iterator and return an iterable. The first takes the
                steps, each other one what the stage before it returns, and the last returns the
                samples.
            loaded: The state of the pipeline after which the loader begins; empty if it begins
                where the plan begins.
        """
        self.loader = loader
        self._loaded = loaded
        worker = get_worker_info()
        self._num_workers = worker.num_workers if worker is not None else 1
        self._progress = _Progress()
        # The progress when the last sample was returned; `_progress` may be one sample ahead.
        self._returned = replace(self._progress)
        samples = _count_steps(loader, self._progress)
        for stage in stages:
            samples = iter(stage(samples))
        samples = _count_samples(samples, self._progress, self._num_workers > 1)
        num_returned_before = loaded.get("given", 0)
        self._samples = islice(samples, num_returned_before, None)
        self._ahead: list[Any] = []  # at most one sample that `state` asked for
        self._failure: Exception | None = None  # what ended `_samples`

    def __next__(self) -> Any:
        if self._failure is not None and not self._ahead:
            raise self._failure
        sample = self._ahead.pop() if self._ahead else next(self._samples)
        self._returned = replace(self._progress)
        return sample

    def state(self) -> Mapping[str, Any]:
        """Returns the state after the last sample that was returned, as plain values.

        Stages may make several samples of one step, and whether the last sample ended its step is
        only known when the next sample is made. So this makes the next sample, and keeps it.
        """
        returned = self._returned
        if not returned.num_steps:
            return self._loaded or self._state_after(None)
        if self._num_workers > 1:
            return {**self._state_after(returned.last), "workers": self._num_workers}
        if not self._ahead and self._failure is None:
            try:
                self._ahead.append(next(self._samples))
            except Exception as error:  # noqa: BLE001 - raised where the sample is asked for
                self._failure = error

        now = self._progress
        if isinstance(self._failure, StopIteration) and not self._ahead:
            return self._state_after(now.last)
        if now.num_steps > returned.num_steps and self._ahead:
            return self._state_after(now.before)
        return self._state_after(returned.before, returned.num_given)

    def _state_after(self, step: RankStep | None, num_given: int = 0) -> dict[str, Any]:
        """Returns the state after a step, and after some samples of the step that follows it.

        Args:
            step: The step; None means before the first step of the loader.
            num_given: Number of samples of the following step that were returned.
        """
        if step is None:
            state = self.loader.begin.to_dict()
            next_step = self.loader.first_step
        else:
            state = step.state
            next_step = step.step + 1
        return {**state, "step": next_step, "given": num_given, "workers": 0}

    def __enter__(self) -> "Samples":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops reading."""
        self.loader.close()


def _count_steps(loader: StepLoader, progress: _Progress) -> Iterator[Any]:
    """Yields the steps of a loader, and notes each in `progress`."""
    for step in loader:
        progress.before = progress.last
        progress.last = step
        progress.num_given = 0
        progress.num_steps += 1
        yield step


def _count_samples(
    samples: Iterator[Any], progress: _Progress, has_other_workers: bool
) -> Iterator[Any]:
    """Yields samples, and counts them in `progress`.

    Args:
        samples: The samples that the stages make.
        progress: Takes the counts.
        has_other_workers: Whether this is one of several workers of a DataLoader. The DataLoader
            takes samples from its workers in turn, so steps stay in order only if every step makes
            exactly one sample.

    Raises:
        ValueError: A step did not make exactly one sample, and there are several workers.
    """

    def check() -> None:
        if has_other_workers and progress.num_samples != progress.num_steps:
            raise ValueError(
                f"a stage of the pipeline made {progress.num_samples} samples of"
                f" {progress.num_steps} steps: with several workers each step must give one, or"
                " their order is lost. Put shuffle, select, batched, unbatched and unlisted behind"
                " the loader: WebLoader(steps.map(...), batch_size=None,"
                " num_workers=2).shuffle(100)"
            )

    for sample in samples:
        progress.num_samples += 1
        progress.num_given += 1
        check()
        yield sample
    check()
