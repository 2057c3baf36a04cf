"""What happens to a step whose gradient was not taken, and to a run with too many in a row.

RUN/anomalies.jsonl has a row for each, with the instances of its global batch. The optimizer has
left weights and moments as they were.
"""

import dataclasses
import json
import math

from trainer.checkpoints.read import load_checkpoint
from trainer.checkpoints.resume import choose_checkpoint, discard_from
from trainer.engine.train_step import grad_norm
from trainer.guards.spike_guard import MOST_ROLLBACKS, SpikeGuard
from trainer.pretrain.run import Run, read_position
from trainer.process.ranks import together
from trainer.stream.step import RankStep, StepLoader


def note_gradient(run: Run, phase_index: int, rank_step: RankStep, loader: StepLoader) -> bool:
    """Judges the gradient of the step just made; False where the run went back.

    A ValueError says that training has diverged: there is nothing, or no more, to go back to.
    """
    guard, norm, limit = run.guard, grad_norm(run.engine, run.optimizer), run.guard.limit
    start, stop = rank_step.first_position, rank_step.state["position"]
    if guard.note(norm, run.position.step, phase_index, (start, stop)):
        return True
    if run.ranks.rank == 0:
        global_batch = run.settings.phases[phase_index].global_batch
        row = {
            "step": run.position.step,
            "phase": phase_index,
            "grad_norm": norm if math.isfinite(norm) else str(norm),
            "limit": limit if math.isfinite(limit) else None,
            "positions": [start, stop],
            "in_a_row": guard.streak.length if guard.streak else 0,
            "instances": loader.describe(rank_step, global_batch),
        }
        with run.folder.anomalies.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    bound = f"not below {limit:.3g}" if math.isfinite(norm) else "not finite"
    run.progress.say(
        f"step {run.position.step} was not taken: the gradient's norm {norm:.3g} is {bound}; positions {start}-{stop}"
        f" of phase {phase_index}, their instances are in {run.folder.anomalies}"
    )
    if not guard.has_enough:
        return True
    _roll_back(run, norm)
    return False


def _roll_back(run: Run, norm: float) -> None:
    """Returns to the checkpoint before the steps not taken, and leaves out their instances."""
    guard = run.guard
    assert guard.streak is not None, "there were steps that were not taken"
    first = guard.streak.first_step
    run.saver.finish()
    checkpoint = None
    if guard.num_rollbacks < MOST_ROLLBACKS:
        skip_damaged = run.settings.checkpoint.skip_damaged
        checkpoint = choose_checkpoint(
            run.folder, run.store, run.ranks, skip_damaged, run.progress.say, before=first
        )
    if checkpoint is None:
        times = guard.num_rollbacks
        why = f"the run went back {times} times" if times else "no checkpoint is before them"
        raise ValueError(
            f"step {run.position.step}: the gradient's norm is {norm}, training has diverged: {guard.streak.length} "
            f"steps in a row were not taken, from step {first} on, and {why}. A lower peak_lr or a longer warm-up "
            f"helps; --skip {guard.streak.phase}:{guard.streak.start}-{guard.streak.stop} leaves their instances out"
        )
    with together(run.ranks):
        if run.ranks.rank == 0:
            discard_from(run.folder, run.store, first)
        run.position = read_position(checkpoint)
    load_checkpoint(checkpoint, run.engine, run.optimizer, run.ranks)
    run.guard = guard.went_back(SpikeGuard(run.settings.safety, run.position.guard))
    run.position = dataclasses.replace(run.position, guard=run.guard.to_dict())
    run.recorder.restart_after(run.position.step)
    run.progress.say(
        f"back to step {run.position.step}, {guard.streak.length} steps in a row were not taken; positions "
        f"{guard.streak.start}-{guard.streak.stop} of phase {guard.streak.phase} are left out from now on"
    )
