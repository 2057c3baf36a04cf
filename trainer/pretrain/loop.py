"""Trains a run: `train_phase` is the whole loop, and run.py puts together what it needs."""

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from pipeline.storage.terminal import say
from trainer.checkpoints.read import load_checkpoint
from trainer.engine.deepspeed_file import passed_to_deepspeed
from trainer.engine.train_step import (
    StepCounts,
    agree_on_waiting,
    begin_to_agree,
    grad_norm,
    seed_dropout,
    train_step,
)
from trainer.guards.spike_guard import MOST_ROLLBACKS, SpikeGuard
from trainer.guards.watchdog import FIRST_STEP_FACTOR
from trainer.guards.weights_check import CORRUPTED, CorruptWeightsError
from trainer.model.bert import name_sums
from trainer.optim.sharded import ShardedOptimizer
from trainer.pretrain.objectives import WITH_NSP, prepare_step
from trainer.pretrain.pairs import measure_pairs
from trainer.pretrain.run import Position, Run, find_position, open_run
from trainer.pretrain.validation import ValidationSet, load_validation_sets, measure
from trainer.process.allocation import release_free_memory
from trainer.process.ranks import Ranks, start_ranks, stop_ranks, together
from trainer.process.stopping import LauncherWatch, leave_at_once, note_outcome, stops_requested
from trainer.runs.metrics import loss_columns
from trainer.settings import Phase, PretrainSettings, resolve
from trainer.stream.pipeline import planned_steps
from trainer.stream.reading.settings import Reading
from trainer.stream.step import RankStep, StepLoader

WAITING_SECONDS = 0.05
"""Seconds between two looks at whether a build has made the next step possible."""

_RELEASE_INTERVAL = 10
"""Steps after which a run on CPUs gives the free memory of its heaps back to the system."""

STOPPING = "stopping after this step, saving; again leaves at once"


@dataclass(frozen=True)
class PhaseClock:
    """Decides the learning rate of each step of a phase, and when the phase ends.

    Both depend on the number of steps made. If the run has a budget of hours, they depend instead
    on the seconds that the phase has taken.

    Attributes:
        phase: The phase.
        budget_seconds: Seconds that the phase may take; None if the run has no budget.
        spent_seconds: Seconds that earlier launches of the run have spent in the phase.
    """

    phase: Phase
    budget_seconds: float | None
    spent_seconds: float
    _began: float = field(default_factory=time.monotonic)

    @property
    def elapsed_seconds(self) -> float:
        """Seconds that the phase has taken so far, validation and saving included.

        It is 0 if the run has no budget of hours, because nothing depends on it then.
        """
        if self.budget_seconds is None:
            return 0.0
        return self.spent_seconds + time.monotonic() - self._began

    def learning_rate(self, step: int, elapsed_seconds: float) -> float:
        """Returns the learning rate of the next step.

        With a budget of hours, time stands for steps: a phase that has used a third of its seconds
        takes the learning rate that its schedule has after a third of its steps.

        Args:
            step: Number of steps of the phase made so far.
            elapsed_seconds: Seconds that the phase has taken so far.
        """
        if self.budget_seconds is None:
            return self.phase.schedule.learning_rate(step)
        share = min(1.0, elapsed_seconds / self.budget_seconds)
        return self.phase.schedule.learning_rate(share * self.phase.steps)

    def ends(self, steps_made: int, elapsed_seconds: float) -> bool:
        """Returns whether a step is the last one of its phase.

        Args:
            steps_made: Number of steps of the phase made so far, that step included.
            elapsed_seconds: Seconds that the phase had taken when that step began.
        """
        if self.budget_seconds is None:
            return steps_made == self.phase.steps
        return elapsed_seconds >= self.budget_seconds


def pretrain(settings: PretrainSettings, remainder: object = None) -> int:
    """Trains, or continues, the run in the folder `settings.output`.

    Args:
        settings: The settings of the command.
        remainder: What follows `--` on the command line: nothing.

    Returns:
        The exit code: 0 if the run is finished. A run that was told to stop saves, and ends the
        process with another code.
    """
    assert not remainder, "the command line passes nothing after --"
    return train(settings, lambda _: True)


def train(settings: PretrainSettings, prepare: Callable[[Ranks], bool]) -> int:
    """Trains, or continues, the run in the folder `settings.output`.

    Args:
        settings: The settings of the run.
        prepare: Called by all ranks together before the run is opened; returns whether there is a
            run to train.

    Returns:
        The exit code: 0 if the run is finished, or there is none. A run that was told to stop
        saves, and ends the process with another code.
    """
    settings = resolve(settings)
    chosen = passed_to_deepspeed(settings.deepspeed)
    watch = LauncherWatch()
    ranks = start_ranks()
    note = note_outcome if ranks.rank == 0 else lambda _: None
    note("running")
    try:
        run = open_run(settings, chosen, ranks) if prepare(ranks) else None
        if run is None:
            note("finished")
            return 0
        with contextlib.closing(run), stops_requested(watch, run.stop, run.progress.say, STOPPING):
            while not run.is_finished and not run.must_stop:
                train_phase(run)
            run.watchdog.beat("waiting for the last checkpoint", FIRST_STEP_FACTOR)
            run.saver.finish()
        step = run.position.step
        ended = f"stopped by a signal and saved after step {step}; the same command continues"
        if run.is_finished:
            counts = f"{step} steps and {run.position.tokens:,} tokens"
            ended = f"{run.folder.path}: finished, {counts}"
        run.progress.say(ended)
    except CorruptWeightsError as error:
        if ranks.rank == 0:
            say(f"pretrain: {error}", is_aside=True)
        return CORRUPTED
    finally:
        stop_ranks()
    if not run.is_finished:
        leave_at_once(128 + run.stop.number)
    note("finished")
    return 0


def train_phase(run: Run) -> None:
    """Makes the remaining steps of the current phase.

    It returns earlier if the run is told to stop, goes back to an earlier checkpoint, or reaches
    the accuracy at which it should stop.
    """
    settings = run.settings
    phase_index = run.position.phase
    phase = settings.phases[phase_index]
    run.watchdog.beat("opening the data", math.inf if settings.follow else FIRST_STEP_FACTOR)
    validation_sets = load_validation_sets(
        run.mixture, phase.seq_len, settings, run.ranks, run.wait_policy, run.progress.say
    )
    run.weights_check.forget()
    clock = PhaseClock(phase, settings.budget_seconds(phase_index), run.position.phase_seconds)
    for rank_step, counts, loader in _agreed_steps(run, phase, clock):
        if run.stops_before is not None and run.stops_before(rank_step):
            run.must_stop = True
            return
        if run.position.phase_step == 0:
            begin_phase(run.optimizer, phase)
        learning_rate = clock.learning_rate(run.position.phase_step, counts.elapsed_seconds)
        run.optimizer.set_learning_rate(learning_rate)
        seed_dropout(settings.seed, phase_index, run.position.phase_step, run.ranks.rank)
        run.optimizer.norm_limit = run.guard.limit
        nsp_weight = settings.nsp_weight if settings.objective == WITH_NSP else 0.0
        totals = train_step(
            run.engine,
            run.ranks,
            rank_step.micro_batches,
            counts,
            nsp_weight,
            must_stop=lambda: run.stop.is_made or run.saver.has_failed,
            # Validation, checkpoints and checks wait themselves: they call `current_model`.
            waits_for_weights=False,
        )
        ends = clock.ends(run.position.phase_step + 1, counts.elapsed_seconds)
        run.position = _advance(run.position, ends, counts, rank_step.state)
        if not _note_gradient(run, phase_index, rank_step, loader):
            return
        totals = totals.cpu()  # a single wait for the device
        _log_step(run, phase_index, rank_step, totals[:-1], counts, learning_rate)
        run.must_stop = bool(totals[-1])
        if run.ranks.device.type == "cpu" and run.is_due(_RELEASE_INTERVAL):
            release_free_memory()
        if run.is_due(settings.validation.interval):
            run.watchdog.beat("validation", FIRST_STEP_FACTOR)
            _log_validation(run, validation_sets)
        is_sound = run.guard.streak is None or run.position.phase_step == 0
        if run.is_due(settings.checkpoint.interval) and is_sound:
            run.save()


def _agreed_steps(
    run: Run, phase: Phase, clock: PhaseClock
) -> Iterator[tuple[RankStep, StepCounts, StepLoader]]:
    """Yields every remaining step of a phase, with the counts that all ranks agree on.

    While the ranks make a step, they already exchange the counts of the next one, so that no GPU
    waits for this exchange. If `run.must_stop` is true after a step, all ranks save a checkpoint
    and the iterator ends. The next step is then not made, although its counts were exchanged.

    Yields:
        This rank's share of the step, the counts over all ranks, and the loader of the step.
    """
    # A limit on time is checked with the time just before the step, and data that is still being
    # built is not waited for before a step that is there.
    looks_ahead = clock.budget_seconds is None and not run.settings.follow
    phase_index = run.position.phase
    steps = _steps_of_phase(run, phase)
    factor = float(FIRST_STEP_FACTOR)
    upcoming: _Upcoming | None = None
    while run.position.phase == phase_index and not run.must_stop:
        run.step_started = time.monotonic()
        run.watchdog.beat(f"step {run.position.step + 1}", factor)
        upcoming = upcoming or _begin_step(run, clock, steps)
        if upcoming is None:
            return
        current = upcoming
        counts = current.agree()
        is_last = run.position.phase_step + 1 == phase.steps
        upcoming = _begin_step(run, clock, steps) if looks_ahead and not is_last else None
        yield current.rank_step, counts, current.loader
        factor = 1.0
        if run.must_stop:
            run.save()


@dataclass(frozen=True)
class _Upcoming:
    """A step that the ranks have begun to agree on.

    Attributes:
        rank_step: This rank's share of the step.
        loader: The loader that the step comes from.
        agree: A function that waits for the counts of all ranks and returns them.
    """

    rank_step: RankStep
    loader: StepLoader
    agree: Callable[[], StepCounts]


def _begin_step(
    run: Run, clock: PhaseClock, steps: Iterator[tuple[RankStep, float, StepLoader]]
) -> _Upcoming | None:
    """Takes the next step from the loader and sends its counts to the other ranks.

    Args:
        run: The run.
        clock: The clock of the phase.
        steps: The steps of the phase, from `_steps_of_phase`.

    Returns:
        The step. None if some rank was told to stop while all waited for data that is still being
        built; the run has been saved then.
    """
    following = next(steps, None)
    if following is None:
        return None
    rank_step, waited, loader = following
    agree = begin_to_agree(
        run.ranks,
        rank_step.micro_batches,
        waited,
        rank_step.drawn,
        clock.elapsed_seconds,
    )
    return _Upcoming(rank_step, loader, agree)


def _steps_of_phase(run: Run, phase: Phase) -> Iterator[tuple[RankStep, float, StepLoader]]:
    """Reads and yields this rank's share of every remaining step of a phase.

    If the data is still being built and some rank is told to stop while all wait for it, the run is
    saved and the iterator ends.

    Yields:
        The step, the seconds of waiting for it, and the loader that read it.
    """
    phase_index = run.position.phase
    settings = run.settings
    same_stream = settings.phases_of(phase.seq_len)
    steps = planned_steps(
        run.mixture,
        "train",
        phase.seq_len,
        rank=run.ranks.rank,
        world_size=run.ranks.world_size,
        global_batch=phase.global_batch,
        micro_tokens=settings.micro_tokens,
        seed=settings.seed,
        state=run.position.streams.get(str(phase.seq_len)),
        first_step=run.position.phase_step,
        skip=[*settings.skipped(*same_stream), *run.guard.skipped(*same_stream)],
        leave_out=run.left_out,
        wait_policy=run.wait_policy,
        reading=Reading(cache_dir=settings.cache_dir, cache_bytes=settings.cache_bytes),
        pin_memory=run.ranks.device.type == "cuda",
        mask_share=partial(settings.mask_share, phase_index) if settings.mask_shares else None,
    )
    with iter(steps.map(partial(prepare_step, objective=settings.objective))) as samples:
        while run.position.phase == phase_index and not run.must_stop:
            asked = time.monotonic()
            if settings.follow and not _have_step(run, samples.loader):
                run.save()
                run.must_stop = True
                return
            rank_step = next(samples)
            yield rank_step, time.monotonic() - asked, samples.loader


def _have_step(run: Run, loader: StepLoader) -> bool:
    """Waits until every rank can read its next step from a dataset that is still being built.

    Returns:
        True if every rank has its next step; False if some rank was told to stop meanwhile.
    """
    while True:
        run.watchdog.beat("waiting for the build")
        ready, stopped = agree_on_waiting(run.ranks, loader.is_ready, run.stop.is_made)
        if ready or stopped:
            return not stopped
        time.sleep(WAITING_SECONDS)


def _advance(
    position: Position, ends: bool, counts: StepCounts, stream: dict[str, Any]
) -> Position:
    """Returns the position after a step.

    Args:
        position: The position before the step.
        ends: Whether the step is the last of its phase. If so, the result is the start of the next
            phase.
        counts: What the step trained on, over all ranks.
        stream: The state after the step of the stream that the phase reads, from `RankStep.state`.
    """
    before = position.drawn or [[0, 0]] * len(counts.drawn)
    pairs = zip(before, counts.drawn, strict=True)
    return Position(
        step=position.step + 1,
        phase=position.phase + ends,
        phase_step=0 if ends else position.phase_step + 1,
        tokens=position.tokens + counts.tokens,
        instances=position.instances + counts.instances,
        drawn=[[old[0] + new[0], old[1] + new[1]] for old, new in pairs],
        streams={**position.streams, str(stream["seq_len"]): stream},
        phase_seconds=0.0 if ends else counts.elapsed_seconds,
    )


def _log_step(
    run: Run, phase_index: int, rank_step: RankStep, sums: Tensor, counts: StepCounts, rate: float
) -> None:
    """Adds a step's row to metrics.jsonl, and moves the progress bar.

    Args:
        run: The run, after the step.
        phase_index: The phase of the step.
        rank_step: This rank's share of the step.
        sums: Sums of losses and right answers over all ranks, in the order of `PretrainingSums`.
        counts: What the step trained on, over all ranks.
        rate: The learning rate of the step.
    """
    phase = run.settings.phases[phase_index]
    has_nsp = run.settings.objective == WITH_NSP
    seconds = time.monotonic() - run.step_started
    steps_left = phase.steps - (run.position.phase_step or phase.steps)
    names = [source.name for source in run.mixture]
    drawn = [{"instances": pair[0], "tokens": pair[1]} for pair in run.position.drawn]
    row: dict[str, Any] = {
        "step": run.position.step,
        "split": "train",
        "phase": phase_index,
        "position": rank_step.first_position,
        **loss_columns(name_sums(sums), counts.masked, counts.instances, has_nsp),
        "grad_norm": grad_norm(run.engine, run.optimizer),
        "learning_rate": rate,
        **run.optimizer.metrics(),
        "tokens": counts.tokens,
        "instances": counts.instances,
        **run.gauge.columns(counts, seconds, phase_index, steps_left),
        **seconds_left(run.settings, phase_index, counts.elapsed_seconds),
        "steps_skipped": run.guard.num_skipped,
        "save_seconds": run.take_save_seconds(),
        "epochs": dict(zip(names, rank_step.epochs, strict=True)),
        "drawn": dict(zip(names, drawn, strict=True)),
        "seconds": seconds,
    }
    run.recorder.add(row)
    run.progress.advance(row)
    if run.position.phase_step == 0:
        for name, counted in row["drawn"].items():
            run.progress.say(
                f"{name}: {row['epochs'][name]:.2f} epochs of length {phase.seq_len};"
                f" {counted['instances']:,} instances and {counted['tokens']:,} tokens in all"
            )


def _log_validation(run: Run, validation_sets: Sequence[ValidationSet]) -> None:
    """Measures the model on validation instances and minimal pairs, and logs the results.

    If the accuracy reaches `validation.stop_at_mlm_accuracy`, it also puts the run at its end.
    """
    row: dict[str, Any] = {"step": run.position.step, "split": "validation"}
    lines: list[str] = []
    if validation_sets:
        row, lines = measure(run.engine, validation_sets, run.ranks, run.position.step)
        run.position = finish_at_accuracy(run.position, row["mlm_accuracy"], run.settings)
    if run.pairs is not None:
        run.watchdog.beat("minimal pairs", FIRST_STEP_FACTOR)
        columns, line = measure_pairs(run.engine, run.pairs, run.ranks, run.settings.micro_tokens)
        row |= columns
        lines.append(f"step {row['step']}: {line}")
    if not lines:
        return
    run.recorder.add(row)
    for line in lines:
        run.progress.say(line)


def seconds_left(
    settings: PretrainSettings, phase: int, elapsed_seconds: float
) -> dict[str, float]:
    """Returns the columns of metrics.jsonl about the time that is left.

    Args:
        settings: The settings of the run.
        phase: Index of the current phase.
        elapsed_seconds: Seconds that this phase has taken so far.

    Returns:
        "phase_seconds", the seconds that the phase has taken, and "eta_seconds", the seconds that
        are left of the budgets of this phase and later ones. Empty if the run has no budget of
        hours.
    """
    if settings.budget_hours is None:
        return {}
    budgets = map(settings.budget_seconds, range(phase, len(settings.phases)))
    left = sum(filter(None, budgets)) - elapsed_seconds
    return {"phase_seconds": elapsed_seconds, "eta_seconds": max(0.0, left)}


def begin_phase(optimizer: ShardedOptimizer, phase: Phase) -> None:
    """Treats the optimizer's state as `phase.optimizer_state` says.

    "keep" changes nothing, "reset" forgets the state, and "zero_step" keeps the running means and
    sets the number of updates to 0.
    """
    if phase.optimizer_state == "reset":
        optimizer.reset()
    elif phase.optimizer_state == "zero_step":
        optimizer.num_updates = 0


def finish_at_accuracy(
    position: Position, mlm_accuracy: float, settings: PretrainSettings
) -> Position:
    """Ends the run if validation has reached `validation.stop_at_mlm_accuracy`.

    Args:
        position: The position of the run.
        mlm_accuracy: The accuracy that was measured.
        settings: The settings of the run.

    Returns:
        The position at the end of the run if the accuracy was reached, else the position that was
        given.
    """
    target = settings.validation.stop_at_mlm_accuracy
    if target is None or mlm_accuracy < target:
        return position
    end = len(settings.phases)
    return dataclasses.replace(position, phase=end, phase_step=0, phase_seconds=0.0)


def _note_gradient(run: Run, phase_index: int, rank_step: RankStep, loader: StepLoader) -> bool:
    """Tells the spike guard the gradient's norm of the step just made, and acts on its verdict.

    The optimizer has not changed the weights if the norm is not finite or not below the guard's
    limit. Messages then say that the step "was not taken", and rank 0 adds a row to
    anomalies.jsonl. After too many such steps in a row the run goes back to an earlier checkpoint.

    Args:
        run: The run, after the step.
        phase_index: The phase of the step.
        rank_step: This rank's share of the step.
        loader: The loader that the step comes from.

    Returns:
        False if the run went back, else True, also if the step was not taken.
    """
    guard = run.guard
    norm = grad_norm(run.engine, run.optimizer)
    limit = guard.limit
    start = rank_step.first_position
    stop = rank_step.state["position"]
    if guard.note(norm, run.position.step, phase_index, (start, stop)):
        return True
    if run.ranks.rank == 0:
        row = {
            "step": run.position.step,
            "phase": phase_index,
            "grad_norm": norm if math.isfinite(norm) else str(norm),
            "limit": limit if math.isfinite(limit) else None,
            "positions": [start, stop],
            "in_a_row": guard.streak.length if guard.streak else 0,
            "instances": loader.name_rows(rank_step, run.settings.phases[phase_index].global_batch),
        }
        with run.folder.anomalies.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    bound = f"not below {limit:.3g}" if math.isfinite(norm) else "not finite"
    run.progress.say(
        f"step {run.position.step} was not taken: the gradient's norm {norm:.3g} is {bound}; "
        f"its instances, {phase_index}:{start}-{stop} for --skip, are in {run.folder.anomalies}"
    )
    if not guard.has_enough:
        return True
    _roll_back(run, norm)
    return False


def _roll_back(run: Run, norm: float) -> None:
    """Goes back to a checkpoint from before the steps that were not taken in a row.

    The run leaves the instances of these steps out from now on.

    Args:
        run: The run.
        norm: The norm of the last gradient, for messages.

    Raises:
        ValueError: There is no checkpoint before these steps, or the run went back MOST_ROLLBACKS
            times already.
    """
    guard = run.guard
    streak = guard.streak
    assert streak is not None, "there were steps that were not taken"
    run.saver.finish()
    can_go = guard.num_rollbacks < MOST_ROLLBACKS
    checkpoint = run.saved.choose(before=streak.first_step) if can_go else None
    left_out = f"{streak.phase}:{streak.start}-{streak.stop}"
    if checkpoint is None:
        times = guard.num_rollbacks
        why = f"the run went back {times} times" if times else "no checkpoint is before them"
        raise ValueError(
            f"step {run.position.step}: the gradient's norm is {norm}, training has diverged: "
            f"{streak.length} steps in a row were not taken, from step {streak.first_step} on, and "
            f"{why}. A lower peak_lr or a longer warm-up helps; --skip {left_out} "
            "leaves their instances out"
        )
    with together(run.ranks):
        if run.ranks.rank == 0:
            run.saved.discard_from(streak.first_step)
        run.position = find_position(run.settings, checkpoint)
    run.saved_position = None
    load_checkpoint(checkpoint, run.engine, run.optimizer, run.ranks)
    run.guard = guard.went_back(SpikeGuard(run.settings.safety, run.position.guard))
    run.position = dataclasses.replace(run.position, guard=run.guard.to_dict())
    run.recorder.restart_after(run.position.step)
    run.progress.say(
        f"back to step {run.position.step}, {streak.length} steps in a row were not taken; "
        f"their instances, {left_out} for --skip, are left out from now on"
    )
