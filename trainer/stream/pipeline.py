"""The planned stream as a `webdataset.DataPipeline`: `pretrain` reads it, others compose with it.

docs/library.md shows it in a plain loop, with `torchrun`, Lightning and the Trainer of Hugging
Face.
"""

import inspect
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
from trainer.stream.order.source import Mixture, open_mixture
from trainer.stream.reading.settings import Reading
from trainer.stream.step import RankStep, StepLoader, StepSizes

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
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> "PlannedSteps":
    """This rank's share of every step, in the order of docs/order.md; each sample is a `RankStep`.

    Data are URLs as `--data` takes them, which are opened where they are iterated, with these
    options of their filesystems; or what is open already. The other arguments are `StepLoader`'s.

    Raises:
        ValueError: Sizes do not fit together. What is wrong with data or state is raised when
            they are read.
        TypeError: An option is none of StepLoader's.
    """
    sizes = StepSizes(rank, world_size, global_batch, micro_tokens)
    sizes.check(seq_len)
    arguments = {**vars(sizes), **options}
    inspect.signature(StepLoader).bind(data, split, seq_len, **arguments)
    data = [data] if isinstance(data, str) else data
    return PlannedSteps(partial(_open_loader, data, storage_options, split, seq_len, arguments))


def iterate_rows(samples: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A sample an instance, of numpy arrays: a stage behind `WebDataset(urls)`, which gives blocks.

    Keys are those of shard, block and row: train/L128/pass-00/shard-00000/000003-017.

    Raises:
        ValueError: A block is damaged.
    """
    for sample in samples:
        url, key = sample["__url__"], sample["__key__"]
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


class PlannedSteps(webdataset.DataPipeline, webdataset.FluidInterface):  # type: ignore[misc]
    """A pipeline that begins with the planned steps; `.map` and others return it a stage longer.

    In the worker processes of a DataLoader, worker w of n reads the steps w, w + n, w + 2n, ...; a
    loader with `batch_size=None` takes from its workers in turn, so they come out in order. This
    holds as long as a sample goes out for every step that goes in, which is checked there. Every
    iteration begins at the same state.
    """

    _loaded: Mapping[str, Any] = {}
    _samples: "Samples | None" = None

    def __iter__(self) -> "Samples":
        """Begins to read; a ValueError where the pipeline repeats."""
        if self.repetitions != 1:
            raise ValueError(
                "with_epoch and repeat would begin at the same step again: ask for num_steps"
            )
        open_loader, *stages = self.pipeline
        stages = [partial(self.invoke, stage) for stage in stages]
        self._samples = Samples(open_loader(self._loaded), stages, self._loaded)
        return self._samples

    def state_dict(self) -> dict[str, Any]:
        """Where the last iteration stands, in plain values: after the last sample that it gave.

        Between the samples of one step it says how many to pass over.
        """
        return dict(self._samples.state() if self._samples else self._loaded)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Lets iterations go on where another stood; after whole steps on any number of ranks."""
        self._loaded, self._samples = dict(state), None

    def __getstate__(self) -> dict[str, Any]:
        """What goes to a worker: nothing that was read here."""
        return {**vars(self), "_samples": None}


@dataclass
class _Progress:
    """How far an iteration has come: the last two steps that went into the stages, and counts.

    Of samples that came out num_given are those since the last step went in.
    """

    before: RankStep | None = None
    last: RankStep | None = None
    num_steps: int = 0
    num_samples: int = 0
    num_given: int = 0


class Samples(Iterator[Any]):
    """One iteration of a pipeline, over the steps of a loader.

    Leave it with `close()` or as a context manager, or let go of it and the pipeline.
    """

    def __init__(
        self, loader: StepLoader, stages: Sequence[Stage], loaded: Mapping[str, Any]
    ) -> None:
        """The samples that stages, one after another, make of the steps after a loaded state."""
        self.loader, self._loaded, worker = loader, loaded, get_worker_info()
        self._num_workers = worker.num_workers if worker is not None else 1
        self._progress = progress = _Progress()
        self._given = replace(progress)
        samples = _count_steps(loader, progress)
        for stage in stages:
            samples = iter(stage(samples))
        samples = _count_samples(samples, progress, self._num_workers > 1)
        self._samples = islice(samples, loaded.get("given", 0), None)
        self._ahead: list[Any] = []
        self._failure: Exception | None = None

    def __next__(self) -> Any:
        if self._failure is not None and not self._ahead:
            raise self._failure
        sample = self._ahead.pop() if self._ahead else next(self._samples)
        self._given = replace(self._progress)
        return sample

    def state(self) -> Mapping[str, Any]:
        """Where it stands; whether a step is over shows when the next sample is made."""
        given, now = self._given, self._progress
        if not given.num_steps:
            return self._loaded or self._after(None)
        if self._num_workers > 1:
            return {**self._after(given.last), "workers": self._num_workers}
        if not self._ahead and self._failure is None:
            try:
                self._ahead.append(next(self._samples))
            except Exception as error:  # noqa: BLE001 - raised where the sample is asked for
                self._failure = error
        if isinstance(self._failure, StopIteration) and not self._ahead:
            return self._after(now.last)
        if now.num_steps > given.num_steps and self._ahead:
            return self._after(now.before)
        return self._after(given.before, given.num_given)

    def _after(self, step: RankStep | None, given: int = 0) -> dict[str, Any]:
        state = self.loader.begin.to_dict() if step is None else step.state
        number = self.loader.first_step if step is None else step.step + 1
        return {**state, "step": number, "given": given, "workers": 0}

    def __enter__(self) -> "Samples":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops reading."""
        self.loader.close()


def _count_steps(loader: StepLoader, progress: _Progress) -> Iterator[Any]:
    for step in loader:
        progress.before, progress.last, progress.num_given = progress.last, step, 0
        progress.num_steps += 1
        yield step


def _count_samples(samples: Iterator[Any], progress: _Progress, in_turn: bool) -> Iterator[Any]:
    """Counts samples, and in one of several workers holds each step to one.

    A loader that takes from its workers in turn would else mix steps up.
    """

    def check() -> None:
        if in_turn and progress.num_samples != progress.num_steps:
            raise ValueError(
                f"a stage of the pipeline made {progress.num_samples} samples of"
                f" {progress.num_steps} steps: with several workers each step must give one, or"
                " their order is lost. Put shuffle, select, batched, unbatched and unlisted behind"
                " the loader: WebLoader(steps.map(...), batch_size=None,"
                " num_workers=2).shuffle(100)"
            )

    for sample in samples:
        progress.num_samples, progress.num_given = progress.num_samples + 1, progress.num_given + 1
        check()
        yield sample
    check()


def _open_loader(
    data: Sequence[str] | Dataset | Mixture,
    storage_options: Mapping[str, Any] | None,
    split: str,
    seq_len: int,
    arguments: Mapping[str, Any],
    loaded: Mapping[str, Any],
) -> StepLoader:
    """Begins to read what falls to this process: all steps of the rank, or a worker's."""
    reading = arguments.get("reading") or Reading()
    reading = replace(reading, rank=arguments["rank"], num_ranks=arguments["world_size"])
    changes: dict[str, Any] = {}
    are_urls = not isinstance(data, Dataset) and all(isinstance(each, str) for each in data)
    if loaded:
        first_step, num_steps = arguments.get("first_step", 0), arguments.get("num_steps")
        changes = {"state": loaded, "first_step": loaded.get("step", first_step)}
        if num_steps is not None:
            changes["num_steps"] = first_step + num_steps - changes["first_step"]
    if (worker := get_worker_info()) is not None:
        if not are_urls:
            raise ValueError(
                "opened datasets do not go to a DataLoader's workers: give planned_steps their URLs"
            )
        reading = replace(reading, buffer_bytes=max(1, reading.buffer_bytes // worker.num_workers))
        changes |= {"num_workers": worker.num_workers, "pin_memory": False}
        # A worker's state is that after a step of its own: its next comes after all others'.
        changes["worker"] = worker.num_workers - 1 if loaded.get("workers") else worker.id
    if are_urls:
        data = open_mixture(
            cast("Sequence[str]", data), storage_options, arguments.get("wait_policy")
        )
    arguments = {**arguments, "reading": reading, **changes}
    return StepLoader(cast("Dataset | Mixture", data), split, seq_len, **arguments)
