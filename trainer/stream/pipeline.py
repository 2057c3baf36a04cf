"""The planned stream as a `webdataset.DataPipeline`: `pretrain` reads it, others compose with it.

docs/library.md shows it in a plain loop, with `torchrun`, Lightning and the Trainer of Hugging
Face.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import webdataset
from torch.utils.data import get_worker_info

from pipeline.shards.dataset import Dataset
from trainer.order.source import Mixture, open_mixture
from trainer.reading.settings import Reading
from trainer.stream.step import StepLoader, StepSizes

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
    num_steps: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> "PlannedSteps":
    """This rank's share of every step, in the order of docs/order.md; each sample is a `RankStep`.

    Args:
        data: URLs as `--data` takes them, which are opened where they are iterated, or what is
            open already.
        split: train or validation.
        seq_len: One of the datasets' lengths.
        rank: As in StepSizes.
        world_size: As in StepSizes.
        global_batch: As in StepSizes.
        micro_tokens: As in StepSizes.
        seed: Random seed of the order of shards.
        state: `RankStep.state` of the last step that was used, to continue after it; None begins
            at position 0.
        num_steps: The stream ends after so many steps; None is without end.
        storage_options: Options of the datasets' filesystems, for URLs.
        options: Further arguments of `StepLoader`.

    Raises:
        ValueError: Sizes do not fit together. What is wrong with data or state is raised when
            they are read.
        TypeError: An option is none of StepLoader's.
    """
    StepSizes(rank, world_size, global_batch, micro_tokens).check(seq_len)
    sizes = {
        "rank": rank,
        "world_size": world_size,
        "global_batch": global_batch,
        "micro_tokens": micro_tokens,
    }
    arguments = {**sizes, "seed": seed, "state": state, "num_steps": num_steps, **options}
    inspect.signature(StepLoader).bind(data, split, seq_len, **arguments)
    if isinstance(data, str):
        data = [data]
    return PlannedSteps(partial(_open_loader, data, storage_options, split, seq_len, arguments))


class PlannedSteps(webdataset.DataPipeline, webdataset.FluidInterface):  # type: ignore[misc]
    """A pipeline that begins with the planned steps.

    `.map` and the others return it a stage longer. In the worker processes of a DataLoader, worker
    w of n reads the steps w, w + n, w + 2n, ...; a loader with `batch_size=None` takes from its
    workers in turn, so they come out in order. This holds as long as a sample goes out for every
    step that goes in, which is checked there. Every iteration begins at the same state.
    """

    def __iter__(self) -> "Samples":
        """Begins to read.

        Raises:
            ValueError: The pipeline repeats, or opened datasets came into another process.
        """
        if self.repetitions != 1:
            raise ValueError(
                "with_epoch and repeat would begin at the same step again and again: ask for num_steps"
            )
        open_loader, *stages = self.pipeline
        return Samples(open_loader(), [partial(self.invoke, stage) for stage in stages])


class Samples(Iterator[Any]):
    """One iteration of a pipeline.

    Leave it with `close()` or as a context manager, or let go of it.

    Attributes:
        loader: The steps that the samples are made of.
    """

    def __init__(self, loader: StepLoader, stages: Sequence[Stage]) -> None:
        """The samples that stages, one after another, make of the steps."""
        self.loader = loader
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            self._samples = _one_for_one(loader, stages)
        else:
            self._samples = _through(loader, stages)

    def __next__(self) -> Any:
        return next(self._samples)

    def __enter__(self) -> "Samples":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops reading."""
        self.loader.close()


def _through(samples: Iterator[Any], stages: Iterable[Stage]) -> Iterator[Any]:
    for stage in stages:
        samples = iter(stage(samples))
    return samples


def _one_for_one(loader: StepLoader, stages: Iterable[Stage]) -> Iterator[Any]:
    """The samples of one of several workers.

    Raises:
        ValueError: A stage made none of a step, or several, or holds some back: a loader that takes
            from its workers in turn would mix steps up.
    """
    taken = given = 0

    def count_steps() -> Iterator[Any]:
        nonlocal taken
        for step in loader:
            taken += 1
            yield step

    def check() -> None:
        if given != taken:
            raise ValueError(
                f"a stage of the pipeline made {given} samples of {taken} steps: with several workers each step must"
                " give one, or their order is lost. Put shuffle, select, batched, unbatched and unlisted behind the"
                " loader: WebLoader(steps.map(...), batch_size=None, num_workers=2).shuffle(100)"
            )

    for sample in _through(count_steps(), stages):
        given += 1
        check()
        yield sample
    check()


def _are_urls(data: Sequence[str] | Dataset | Mixture) -> bool:
    return not isinstance(data, Dataset) and all(isinstance(each, str) for each in data)


def _open_loader(
    data: Sequence[str] | Dataset | Mixture,
    storage_options: Mapping[str, Any] | None,
    split: str,
    seq_len: int,
    arguments: Mapping[str, Any],
) -> StepLoader:
    """Begins to read what falls to this process: all steps of the rank, or a worker's."""
    reading = replace(
        arguments.get("reading") or Reading(),
        rank=arguments["rank"],
        num_ranks=arguments["world_size"],
    )
    if (worker := get_worker_info()) is not None:
        if not _are_urls(data):
            raise ValueError(
                "opened datasets do not go to a DataLoader's workers: give planned_steps their URLs"
            )
        reading = replace(reading, buffer_bytes=max(1, reading.buffer_bytes // worker.num_workers))
        arguments = {
            **arguments,
            "worker": worker.id,
            "num_workers": worker.num_workers,
            "pin_memory": False,
        }
    arguments = {**arguments, "reading": reading}
    if _are_urls(data):
        data = open_mixture(
            cast("Sequence[str]", data), storage_options, arguments.get("wait_policy")
        )
    return StepLoader(cast("Dataset | Mixture", data), split, seq_len, **arguments)
