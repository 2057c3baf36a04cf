"""The training loop: `train_phase` is all of it; `trainer.run` puts a run together, `trainer.engine` makes a step."""

import contextlib
import dataclasses
import math
import signal
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from torch import Tensor

from trainer.checkpoint import remove_old, save_checkpoint
from trainer.engine import (
    StepCounts,
    agree_on_step,
    agree_on_waiting,
    deepspeed_config,
    grad_norm,
    read_deepspeed_file,
    seed_dropout,
    train_step,
)
from trainer.metrics import MetricsFile, loss_columns
from trainer.ranks import start_ranks, stop_ranks
from trainer.run import Position, Run, open_run
from trainer.settings import Phase, PretrainSettings, resolve
from trainer.stream.ranged_read import ReadSettings
from trainer.stream.step import RankStep, StepLoader
from trainer.validation import ValidationSet, format_validation, join_columns, load_validation_sets, validate

STOPPED_BY_SIGTERM = 128 + signal.SIGTERM
WAITING_SECONDS = 0.05


def pretrain(settings: PretrainSettings, remainder: object = None) -> int:
    """Trains, or continues, the run in settings.output. Returns the exit code: 0 when the run is finished."""
    assert not remainder, "the command line passes nothing after --"
    settings = resolve(settings)
    chosen = read_deepspeed_file(settings.deepspeed)
    deepspeed = deepspeed_config(chosen, settings.zero_stage, settings.precision)
    ranks = start_ranks()
    try:
        run = open_run(settings, deepspeed, ranks)
        if run is None:
            return 0
        with contextlib.closing(run.progress), _stop_on_sigterm(run):
            while not run.is_finished and not run.must_stop:
                train_phase(run)
        _say_how_it_ended(run)
        return 0 if run.is_finished else STOPPED_BY_SIGTERM
    finally:
        stop_ranks()


def train_phase(run: Run) -> None:
    """The loop: the steps that are left of the current phase, or as many as there are before a signal to stop."""
    settings, phase, phase_index = run.settings, run.settings.phases[run.position.phase], run.position.phase
    validation_sets = load_validation_sets(run.mixture, phase.seq_len, settings, run.ranks, run.patience)
    if run.position.phase_step == 0 and phase.optimizer_state == "reset":
        run.optimizer.reset()
    for rank_step in _steps_of_phase(run, phase):
        counts = agree_on_step(
            run.ranks, rank_step.micro_batches, rank_step.wait_seconds, run.stop_requested, rank_step.drawn
        )
        learning_rate = phase.schedule.learning_rate(run.position.phase_step)
        run.optimizer.set_learning_rate(learning_rate)
        seed_dropout(settings.seed, phase_index, run.position.phase_step, run.ranks.rank)
        sums = train_step(run.engine, run.ranks, rank_step.micro_batches, counts)
        run.position = _advance(run.position, phase, counts, rank_step.state)
        _log_step(run, phase_index, rank_step, sums, counts, learning_rate)
        if run.is_due(settings.validation.interval):
            _log_validation(run, validation_sets)
        if run.is_due(settings.checkpoint.interval) or counts.must_stop:
            _save(run)
        run.must_stop = counts.must_stop


def _steps_of_phase(run: Run, phase: Phase) -> Iterator[RankStep]:
    """This rank's share of every step that is left of the phase."""
    phase_index = run.position.phase
    with StepLoader(
        run.mixture,
        "train",
        phase.seq_len,
        rank=run.ranks.rank,
        world_size=run.ranks.world_size,
        global_batch=phase.global_batch,
        micro_tokens=run.settings.micro_tokens,
        seed=run.settings.seed,
        state=run.position.stream,
        first_step=run.position.phase_step,
        skip=run.settings.skipped(phase_index),
        patience=run.patience,
        reading=ReadSettings(cache_dir=run.settings.cache_dir, cache_bytes=run.settings.cache_bytes),
        pin_memory=run.ranks.device.type == "cuda",
    ) as loader:
        while run.position.phase == phase_index and not run.must_stop:
            run.step_started = time.monotonic()
            if run.settings.follow and not _have_step(run, loader):
                _save(run)
                run.must_stop = True
                return
            rank_step = next(loader)
            yield dataclasses.replace(rank_step, wait_seconds=time.monotonic() - run.step_started)


def _have_step(run: Run, loader: StepLoader) -> bool:
    """Waits until every rank has its next step, however long a build takes; False where one was told to stop."""
    while True:
        ready, stopped = agree_on_waiting(run.ranks, loader.is_ready, run.stop_requested)
        if ready or stopped:
            return not stopped
        time.sleep(WAITING_SECONDS)


def _advance(position: Position, phase: Phase, counts: StepCounts, stream: dict[str, Any]) -> Position:
    """The position after a step, at the beginning of the next phase where it was the last of this one."""
    made = position.phase_step + 1
    ends = made == phase.steps
    return Position(
        step=position.step + 1,
        phase=position.phase + ends,
        phase_step=0 if ends else made,
        tokens=position.tokens + counts.tokens,
        instances=position.instances + counts.instances,
        drawn=_add_drawn(position.drawn, counts.drawn),
        stream=None if ends else stream,
    )


def _add_drawn(before: Sequence[Sequence[int]], now: Sequence[Sequence[int]]) -> list[list[int]]:
    """Instances and tokens of every dataset, added up."""
    pairs = zip(before or [[0, 0]] * len(now), now, strict=True)
    return [[one + other for one, other in zip(old, new, strict=True)] for old, new in pairs]


def _log_step(
    run: Run, phase_index: int, rank_step: RankStep, sums: Tensor, counts: StepCounts, learning_rate: float
) -> None:
    """Adds the step's row to metrics.jsonl and moves the bar.

    Raises:
        ValueError: The gradient is not finite; nothing was saved since.
    """
    norm = grad_norm(run.engine, run.optimizer)
    columns = loss_columns(sums.tolist(), counts.masked, counts.instances)
    seconds = time.monotonic() - run.step_started
    first = rank_step.first_position
    if not math.isfinite(norm):
        raise ValueError(
            f"step {run.position.step}: the gradient's norm is {norm}, training has diverged. The same command goes "
            f"back to the newest checkpoint in {run.folder.checkpoints}; a lower peak_lr or a longer warm-up helps; "
            f"--skip {phase_index}:{first}-{rank_step.state['position']} leaves this step's instances out"
        )
    names = [each.name for each in run.mixture]
    drawn = [dict(zip(("instances", "tokens"), pair, strict=True)) for pair in run.position.drawn]
    row: dict[str, Any] = {
        "step": run.position.step,
        "split": "train",
        "phase": phase_index,
        "position": first,
        **columns,
        "grad_norm": norm,
        "learning_rate": learning_rate,
        "tokens": counts.tokens,
        "instances": counts.instances,
        "tokens_per_second": counts.tokens / seconds,
        "max_over_mean_tokens": counts.most_tokens * run.ranks.world_size / counts.tokens,
        "data_wait_share": min(1.0, counts.wait_seconds / seconds),
        "epochs": dict(zip(names, rank_step.epochs, strict=True)),
        "drawn": dict(zip(names, drawn, strict=True)),
        "seconds": seconds,
    }
    if run.ranks.rank == 0:
        MetricsFile(run.folder.metrics).append(row)
    run.progress.advance(row)
    if run.position.phase_step == 0:
        for name, counted in row["drawn"].items():
            run.progress.say(
                f"{name}: {row['epochs'][name]:.2f} epochs in phase {phase_index};"
                f" {counted['instances']:,} instances and {counted['tokens']:,} tokens in all"
            )


def _log_validation(run: Run, validation_sets: Sequence[ValidationSet]) -> None:
    """Measures the validation loss, where a dataset has a validation split, and writes it down."""
    if not validation_sets:
        return
    parts = {each.name: validate(run.engine, each, run.ranks) for each in validation_sets}
    row = {"step": run.position.step, "split": "validation", **join_columns(parts, validation_sets)}
    if len(parts) > 1:
        row["datasets"] = parts
    if run.ranks.rank == 0:
        MetricsFile(run.folder.metrics).append(row)
    run.progress.say(f"step {run.position.step}: {format_validation(row)}")
    for name, columns in row.get("datasets", {}).items():
        run.progress.say(f"  {name}: {format_validation(columns)}")


def _save(run: Run) -> None:
    position = dataclasses.asdict(run.position)
    save_checkpoint(run.folder.checkpoints, position, run.engine, run.optimizer, run.ranks)
    if run.ranks.rank == 0:
        remove_old(run.folder.checkpoints, run.settings.checkpoint.keep)


def _say_how_it_ended(run: Run) -> None:
    position = run.position
    if run.is_finished:
        run.progress.say(f"{run.folder.path}: finished, {position.step} steps and {position.tokens:,} tokens")
    else:
        run.progress.say(f"stopped by a signal and saved after step {position.step}; the same command continues")


@contextlib.contextmanager
def _stop_on_sigterm(run: Run) -> Iterator[None]:
    """While this holds, SIGTERM lets the step end, saves and leaves."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        run.stop_requested = True

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
