"""Plans a forgetting: from which checkpoint a run has to be made again, and what that costs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from pipeline.command_line.values import make, parse_yaml, read_mapping
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
    """The run that documents are to be forgotten from.

    Attributes:
        store: Its files.
        settings: Its settings.
        facts: Its run.json.
        left_out: The documents that it leaves out, by the first 64 bits of their ids.
        positions: How far it had come at each checkpoint, by the checkpoint's name, oldest first.
        seconds: Seconds of each step that its metrics have, by the number of the step.
    """

    store: CheckpointStore
    settings: PretrainSettings
    facts: Mapping[str, Any]
    left_out: tuple[int, ...]
    positions: Mapping[str, Position]
    seconds: Mapping[int, float]

    @property
    def newest(self) -> Position:
        """How far it had come at its newest checkpoint."""
        return self.positions[[*self.positions][-1]]


@dataclass(frozen=True)
class ForgettingPlan:
    """What has to be done to forget documents.

    Attributes:
        documents: The whole list of the new run: the documents that the old run leaves out, then
            the further ones, by the first 64 bits of their ids.
        num_forgotten: Number of further documents.
        num_instances: How often steps have read instances of the further documents.
        first_step: The first step, counted from 1, that the further documents had a part in; None
            if there was none.
        checkpoint: The name of the checkpoint to go on from; None begins anew.
        checkpoint_step: Number of steps before that checkpoint.
        steps_made: Number of steps that the old run has made.
        num_steps: Number of steps of a whole run.
        seconds: How long the steps after the checkpoint take at the old run's rate, or None if it
            is not known.
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
        """Returns the plan in words, a line for each fact.

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
            lines.append("no checkpoint is from before that step: training begins at step 0")
        again = self.steps_made - self.checkpoint_step
        to_make = self.num_steps - self.checkpoint_step
        hours = "" if self.seconds is None else f", {self.seconds / 3_600:.2f} hours at its rate"
        lines.append(f"{again:,} steps are made again, {to_make:,} until the end{hours}")
        return lines


def read_old_run(name: str, options: Mapping[str, Any] | None) -> OldRun:
    """Returns a run that documents are to be forgotten from.

    Args:
        name: The folder of the run, or its --checkpoint.url.
        options: Options of its filesystem.

    Raises:
        FileNotFoundError: There is no run, or it has no checkpoint.
        ValueError: A file of it is damaged, or the clock decided when its phases ended.
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
            " steps and no run can repeat them; train a new one with --leave_out"
        )
    return OldRun(store, settings, facts, left_out, positions, _read_seconds(store))


def parse_config(data: bytes, where: str) -> PretrainSettings:
    """Returns the settings in a run's config.yaml.

    Raises:
        ValueError: The file is damaged.
    """
    root = parse_yaml(data, where, is_file=True)
    if root is None:
        raise ValueError(f"{where} is empty; restore it")
    settings: PretrainSettings = make(PretrainSettings, dict(read_mapping(root, PretrainSettings)))
    return settings


def open_run_data(
    old: OldRun, data: Sequence[str] | None, options: Mapping[str, Any] | None
) -> Mixture:
    """Opens the datasets of a run, and checks that they are the ones that it was trained on.

    Args:
        old: The run.
        data: Where the datasets are now; None for where they were.
        options: Options of their filesystems.

    Raises:
        FileNotFoundError: A dataset is gone, or its build has not ended.
        ValueError: A dataset is damaged, or is another one.
    """
    mixture = open_mixture(data or old.settings.data, options)
    datasets = [dataset_facts(source) for source in mixture]
    refuse_changed_datasets(old.store.url, old.facts["datasets"], datasets)
    return mixture


def plan_forgetting(
    old: OldRun, mixture: Mixture, documents: str, cache_dir: str | None
) -> ForgettingPlan:
    """Returns from where a run has to be made again to forget documents.

    Args:
        old: The run.
        mixture: Its datasets.
        documents: A file of ids of documents.
        cache_dir: As in `open_document_index`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is malformed or lists a document that no dataset holds; or the run
            goes on from another run that has read one.
    """
    known = set(old.left_out)
    listed = [document for document in read_document_list(documents) if document not in known]
    refuse_unknown([source.dataset for source in mixture], listed, documents, cache_dir)
    lengths = [phase.seq_len for phase in old.settings.phases]
    whole = (*old.left_out, *listed)
    left_out = LeftOutDocuments(whole, cache_dir).look_into(mixture, lengths)

    usable = None
    for name, position in old.positions.items():
        if not any(len(read) for read in _read_positions(old, mixture, left_out, position)):
            usable = name
    read = list(_read_positions(old, mixture, left_out, old.newest))
    first_steps = [
        _step_of_position(old, mixture, left_out, seq_len, int(positions[0]))
        for seq_len, positions in zip(old.newest.streams, read, strict=True)
        if len(positions)
    ]
    first_step = min(first_steps, default=None)
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
        seconds=_estimate_seconds(old.seconds, checkpoint_step, num_steps),
    )


def _read_positions(
    old: OldRun, mixture: Mixture, left_out: LeftOutDocuments, position: Position
) -> Iterator[Array]:
    """Yields, for each stream, the positions of the further documents that the run has read.

    Positions that the run went back from, and leaves out since then, were read as well: what it
    read decided that it went back.

    Args:
        old: The run.
        mixture: Its datasets.
        left_out: All documents; those that the old run leaves out come first.
        position: How far the run had come.
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
    """Returns the step of the old run, counted from 1, that has read a position of a stream."""
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
    """Returns how many positions before one the old run has passed over."""
    before = LeftOutDocuments(old.left_out, left_out.cache_dir) if old.left_out else None
    passes = KnownPasses(mixture, "train", state.seq_len, WaitPolicy(), before)
    passes.wait_for(position)
    absent = left_out_between(passes.order(state), 0, position) if before else np.empty(0, np.int64)
    num_in_stretches = sum(
        min(stop, position) - start for start, stop in state.skipped if start < position
    )
    return num_in_stretches + int(np.count_nonzero(~is_in(state.skipped, absent)))


def _read_seconds(store: CheckpointStore) -> dict[int, float]:
    """Returns the seconds of each step that a run's metrics have."""
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


def _estimate_seconds(seconds: Mapping[int, float], after: int, num_steps: int) -> float | None:
    """Returns how long the steps after one take, by the seconds that steps have taken."""
    if not seconds:
        return None
    mean = sum(seconds.values()) / len(seconds)
    return sum(seconds.get(step, mean) for step in range(after + 1, num_steps + 1))
