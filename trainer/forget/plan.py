"""Plans a forgetting: from which checkpoint a run has to be made again, and what that costs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from pipeline.command_line.values import make_settings, parse_yaml, read_mapping
from pipeline.shards.document_list import read_document_list, refuse_unknown
from pipeline.shards.growing import WaitPolicy
from trainer.checkpoints.files import STATE, step_of
from trainer.checkpoints.resume import find_run
from trainer.checkpoints.store import METRICS, CheckpointStore
from trainer.pretrain.run import Position, read_position
from trainer.runs.run_folder import CONFIG, dataset_facts, refuse_changed_datasets
from trainer.settings import PretrainSettings
from trainer.stream.known import KnownPasses
from trainer.stream.left_out import LeftOutDocuments
from trainer.stream.order.order import Array
from trainer.stream.order.source import Mixture, open_mixture
from trainer.stream.order.state import StreamState, parse_state
from trainer.stream.order.stretches import is_in, left_out_between


@dataclass(frozen=True)
class OldRun:
    """The run that has read the documents to forget.

    Attributes:
        store: The run's files.
        settings: The settings that the run was trained with.
        facts: The content of the run's run.json.
        left_out: The documents that the run itself was told to leave out, each as the first 64 bits
            of its id.
        positions: For each checkpoint, by its name, how far the run had come when it was saved. The
            oldest checkpoint is first.
        seconds: How many seconds a step took, by the number of the step, for the steps that the
            run's metrics file has.
    """

    store: CheckpointStore
    settings: PretrainSettings
    facts: Mapping[str, Any]
    left_out: tuple[int, ...]
    positions: Mapping[str, Position]
    seconds: Mapping[int, float]

    @property
    def newest(self) -> Position:
        """How far the run had come at its newest checkpoint."""
        return self.positions[[*self.positions][-1]]


@dataclass(frozen=True)
class ForgettingPlan:
    """A plan to make a run again without some documents.

    Attributes:
        documents: All documents that the new run leaves out, each as the first 64 bits of its id.
            Those that the old run left out are first, followed by the newly forgotten ones.
        num_forgotten: Number of newly forgotten documents.
        num_instances: How often steps of the old run have read an instance with a newly forgotten
            document.
        first_step: The first step of the old run, counted from 1, that has read such an instance;
            None if no step has.
        checkpoint: The name of the checkpoint that the new run goes on from. It is the newest one
            at which no step had read such an instance. None if there is no such checkpoint: then
            the new run begins where the old run began.
        checkpoint_step: Number of steps that the new run does not make again.
        steps_made: Number of steps that the old run has made.
        num_steps: Number of steps of the new run when it is finished, `checkpoint_step` included.
        seconds: Estimate of the time that the new run trains, in seconds, from the old run's rate;
            None if the old run has no metrics.
    """

    documents: tuple[int, ...]
    num_forgotten: int
    num_instances: int
    first_step: int | None
    checkpoint: str | None
    checkpoint_step: int
    steps_made: int
    num_steps: int
    seconds: float | None

    @property
    def has_nothing_to_do(self) -> bool:
        """Whether the old run is finished and no step has read one of the documents."""
        return self.first_step is None and self.steps_made == self.num_steps

    def describe(self, run: str) -> list[str]:
        """Returns lines of text that tell a person the plan.

        Args:
            run: What the lines call the old run.
        """
        listed = f"{self.num_forgotten:,} document(s) to forget"
        if self.first_step is None:
            lines = [f"{listed}: no step of {run} has read one of them"]
        else:
            lines = [
                f"{listed}: steps of {run} have read their instances {self.num_instances:,} times,"
                f" the first in step {self.first_step:,}"
            ]
        if self.has_nothing_to_do:
            return [*lines, f"nothing to do: {run} is the run without them, no other is made"]
        if self.checkpoint is not None:
            lines.append(f"training goes on after step {self.checkpoint_step:,}, its checkpoint")
        else:
            lines.append(
                "no checkpoint is from before that step: training begins at step"
                f" {self.checkpoint_step:,}"
            )
        again = self.steps_made - self.checkpoint_step
        to_make = self.num_steps - self.checkpoint_step
        hours = "" if self.seconds is None else f", {self.seconds / 3_600:.2f} hours at its rate"
        lines.append(f"{again:,} steps are made again, {to_make:,} until the end{hours}")
        return lines


def read_old_run(name: str, options: Mapping[str, Any] | None) -> OldRun:
    """Reads what a plan needs to know of the run that has read the documents.

    Args:
        name: The folder of the run, or its --checkpoint.url.
        options: Options of the run's filesystem.

    Raises:
        FileNotFoundError: There is no run, or the run has no checkpoint.
        ValueError: A file of the run is damaged. Or the run was trained for a number of hours, so
            that the clock decided when its phases ended, and no other run can repeat its steps.
    """
    store, names = find_run(name, options)
    positions = {}
    for checkpoint in names:
        with store.opened(checkpoint, [STATE]) as (run, folder):
            positions[checkpoint] = read_position(folder)
            facts = run.read_facts()
            config = run.config.read_bytes()
            left_out = run.read_left_out()
    settings = parse_config(config, store.locate(CONFIG))
    if settings.budget_hours is not None:
        raise ValueError(
            f"{name} was trained for {settings.budget_hours} hours, so the clock decided about its"
            " steps and no run can repeat them; to leave documents out, train a new one with"
            " --leave_out"
        )
    return OldRun(store, settings, facts, left_out, positions, _read_seconds(store))


def parse_config(data: bytes, where: str) -> PretrainSettings:
    """Returns the settings in a run's config.yaml.

    Args:
        data: The content of the file.
        where: What messages call the file.

    Raises:
        ValueError: The file is damaged.
    """
    root = parse_yaml(data, where, is_file=True)
    if root is None:
        raise ValueError(f"{where} is empty; restore it")
    settings: PretrainSettings = make_settings(
        PretrainSettings, dict(read_mapping(root, PretrainSettings))
    )
    return settings


def open_run_data(
    old: OldRun, data: Sequence[str] | None, options: Mapping[str, Any] | None
) -> Mixture:
    """Opens the datasets of a run, and checks that they are the ones that it was trained on.

    Args:
        old: The run.
        data: The folders or URLs of the datasets, in the order of the run. None or an empty list
            takes those of the run's settings.
        options: Options of the filesystems of the datasets.

    Raises:
        FileNotFoundError: A dataset is not there, or its build has not ended.
        ValueError: A dataset is damaged, or is not the one that the run was trained on.
    """
    mixture = open_mixture(data or old.settings.data, options)
    datasets = [dataset_facts(source) for source in mixture]
    refuse_changed_datasets(old.store.url, old.facts["datasets"], datasets)
    return mixture


def plan_forgetting(
    old: OldRun,
    mixture: Mixture,
    documents: str,
    cache_dir: str | None,
    storage_options: Mapping[str, Any] | None = None,
) -> ForgettingPlan:
    """Finds the checkpoint from which a run has to be made again to forget documents.

    Args:
        old: The run.
        mixture: The run's datasets.
        documents: The path of a file that `read_document_list` reads. Documents that the run leaves
            out already are skipped.
        cache_dir: Folder where indexes from documents to instances are cached; None for the default
            of `open_document_index`.
        storage_options: Options of the filesystem of `documents`, if it is at a URL.

    Raises:
        FileNotFoundError: The file is not there.
        ValueError: The file is malformed, or lists a document that no dataset holds. Or the run
            continued another run, and that other run has already read one of the documents: then
            they have to be forgotten from the other run first.
    """
    known = set(old.left_out)
    named = read_document_list(documents, storage_options)
    listed = [document for document in named if document not in known]
    refuse_unknown([source.dataset for source in mixture], listed, documents, cache_dir)
    lengths = [phase.seq_len for phase in old.settings.phases]
    whole = (*old.left_out, *listed)
    left_out = LeftOutDocuments(whole, cache_dir).look_into(mixture, lengths)

    usable = None
    for name, position in old.positions.items():
        if not any(len(read) for read in _read_positions(old, mixture, left_out, position)):
            usable = name
    read = list(_read_positions(old, mixture, left_out, old.newest))
    first_step = _first_step_of(old, mixture, left_out, read)
    trunk_step = int(old.facts.get("trunk", {}).get("step", 0))
    if first_step is not None and first_step <= trunk_step and usable is None:
        trunk = old.facts["trunk"]["run"]
        raise ValueError(
            f"{old.store.url} goes on from step {trunk_step} of {trunk}, which has read the"
            f" documents in step {first_step}: forget them from {trunk}, then give the result to"
            " pretrain as --continue_from"
        )
    checkpoint_step = trunk_step if usable is None else step_of(usable)
    num_steps = sum(phase.steps for phase in old.settings.phases)
    if old.newest.phase == len(old.settings.phases):
        num_steps = old.newest.step  # an accuracy may have ended it
    return ForgettingPlan(
        documents=whole,
        num_forgotten=len(listed),
        num_instances=sum(map(len, read)),
        first_step=first_step,
        checkpoint=usable,
        checkpoint_step=checkpoint_step,
        steps_made=old.newest.step,
        num_steps=num_steps,
        seconds=estimate_seconds(old.seconds, checkpoint_step, num_steps),
    )


def find_first_step(old: OldRun, mixture: Mixture, left_out: LeftOutDocuments) -> int | None:
    """Returns the first step of a run, counted from 1, that read a newly forgotten document.

    Args:
        old: The run.
        mixture: The run's datasets.
        left_out: All documents that the new run leaves out. The first `len(old.left_out)` of them
            are those that the run itself leaves out; the others are newly forgotten.

    Returns:
        The step, or None if no step up to the run's newest checkpoint has read one.
    """
    read = list(_read_positions(old, mixture, left_out, old.newest))
    return _first_step_of(old, mixture, left_out, read)


def _first_step_of(
    old: OldRun, mixture: Mixture, left_out: LeftOutDocuments, read: Sequence[Array]
) -> int | None:
    """Returns the first step of a run that read one of some positions; None if there are none.

    Args:
        old: The run.
        mixture: The run's datasets.
        left_out: Gives the folder in which indexes are cached.
        read: For each stream of the newest checkpoint, the positions in ascending order.
    """
    first_steps = [
        _step_of_position(old, mixture, left_out, seq_len, int(positions[0]))
        for seq_len, positions in zip(old.newest.streams, read, strict=True)
        if len(positions)
    ]
    return min(first_steps, default=None)


def _read_positions(
    old: OldRun, mixture: Mixture, left_out: LeftOutDocuments, position: Position
) -> Iterator[Array]:
    """Yields, for each stream, where a run has read newly forgotten documents.

    A run that goes back to a checkpoint because of bad gradients skips the positions that it went
    back from. Those positions count as read here: their gradients decided that the run went back.

    Args:
        old: The run.
        mixture: The run's datasets.
        left_out: All documents that the new run leaves out. The first `len(old.left_out)` of them
            are those that the run itself leaves out; the others are newly forgotten.
        position: How far the run had come.

    Yields:
        For each stream in `position.streams` the positions, in ascending order, that the run has
        read and whose instance holds a newly forgotten document.
    """
    for seq_len, plain in position.streams.items():
        state = parse_state(plain)
        phases = old.settings.phases_of(int(seq_len))
        went_back = tuple(
            (start, stop)
            for phase, start, stop in position.guard.get("left_out", ())
            if phase in phases
        )
        passes = KnownPasses(mixture, "train", state.seq_len, WaitPolicy(), left_out)
        end = max([state.position, *(stop for _, stop in went_back)])
        passes.wait_for(end)
        order = passes.order_of_further(state, len(old.left_out))
        positions = left_out_between(order, 0, end)
        yield positions[~is_in(state.skipped, positions) | is_in(went_back, positions)]


def _step_of_position(
    old: OldRun, mixture: Mixture, left_out: LeftOutDocuments, seq_len: str, position: int
) -> int:
    """Returns the step of the old run, counted from 1, that has read a position of a stream.

    Args:
        old: The run.
        mixture: The run's datasets.
        left_out: Gives the folder in which indexes are cached.
        seq_len: The length of the stream's instances, in digits: its key in `Position.streams`.
        position: The position in the stream.
    """
    state = parse_state(old.newest.streams[seq_len])
    num_before = position - _num_absent(old, mixture, left_out, state, position)
    starts = [0, *accumulate(phase.steps for phase in old.settings.phases)]
    for index in old.settings.phases_of(state.seq_len):
        phase = old.settings.phases[index]
        if num_before < phase.steps * phase.global_batch:
            return starts[index] + num_before // phase.global_batch + 1
        num_before -= phase.steps * phase.global_batch
    return old.newest.step


def _num_absent(
    old: OldRun,
    mixture: Mixture,
    left_out: LeftOutDocuments,
    state: StreamState,
    position: int,
) -> int:
    """Returns how many positions before a given position the old run has passed over.

    It passes over the instances of documents that it leaves out, and the stretches of the stream
    that it skips.

    Args:
        old: The run.
        mixture: The run's datasets.
        left_out: Gives the folder in which indexes are cached.
        state: The state of the stream at the run's newest checkpoint.
        position: The given position in the stream.
    """
    before = LeftOutDocuments(old.left_out, left_out.cache_dir) if old.left_out else None
    passes = KnownPasses(mixture, "train", state.seq_len, WaitPolicy(), before)
    passes.wait_for(position)
    absent = left_out_between(passes.order(state), 0, position) if before else np.empty(0, np.int64)
    num_in_stretches = sum(
        min(stop, position) - start for start, stop in state.skipped if start < position
    )
    return num_in_stretches + int(np.count_nonzero(~is_in(state.skipped, absent)))


def _read_seconds(store: CheckpointStore) -> dict[int, float]:
    """Returns how many seconds each training step took, by the number of the step.

    Only steps in the run's metrics file are in the result. It is empty if there is no such file,
    and rows that cannot be read are left out.
    """
    seconds: dict[int, float] = {}
    if store.folder.exists(METRICS):
        for line in store.folder.read(METRICS).splitlines():
            try:
                row = json.loads(line)
                if row["split"] == "train":
                    seconds[int(row["step"])] = float(row["seconds"])
            except (ValueError, KeyError, TypeError):
                continue  # the estimate does without a row; training refuses a damaged file
    return seconds


def estimate_seconds(seconds: Mapping[int, float], after: int, num_steps: int) -> float | None:
    """Returns how many seconds the steps `after + 1` to `num_steps` will take.

    A step is expected to take as long as the old run's step of the same number, or as long as the
    mean step if the old run did not record it.

    Args:
        seconds: The seconds of steps of the old run, by the number of the step.
        after: Number of the last step that is not made.
        num_steps: Number of the last step.

    Returns:
        The estimate, or None if `seconds` is empty.
    """
    if not seconds:
        return None
    mean = sum(seconds.values()) / len(seconds)
    return sum(seconds.get(step, mean) for step in range(after + 1, num_steps + 1))
