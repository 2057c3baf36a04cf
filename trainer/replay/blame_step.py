"""Runs `python -m trainer ask RUN --blame STEP`.

The steps from the newest checkpoint before STEP are made again in a temporary copy of the run, up
to the weights just before STEP. Then the gradient of STEP is computed with and without some of its
instances (trainer/replay/blame.py).
"""

import contextlib
import json
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed

from pipeline.inspect.show import read_vocabulary
from pipeline.storage.folder import parse_storage_options
from pipeline.storage.terminal import say
from trainer.ask.answers import Record, describe_origins, describe_slot
from trainer.ask.asked_run import AskedRun, opened_run
from trainer.ask.command import open_origins, refuse_homeless_page, write_answer
from trainer.ask.origins import Origins
from trainer.ask.settings import AskSettings
from trainer.ask.step_instances import StepContent, StepReader
from trainer.checkpoints.files import step_of
from trainer.checkpoints.read import read_states
from trainer.checkpoints.store import METRICS, CheckpointStore
from trainer.engine.train_step import seed_dropout
from trainer.forget.plan import OldRun, estimate_seconds, read_old_run
from trainer.model.bert import BertForPreTraining, build_model
from trainer.pretrain.loop import train_phase
from trainer.pretrain.objectives import WITH_NSP, freeze_unused
from trainer.pretrain.run import Run
from trainer.process.ranks import Ranks, start_ranks, stop_ranks, together
from trainer.process.stopping import LauncherWatch
from trainer.replay.blame import StepGradient, count_labels, find_by_halves, gradient_of, norm_of
from trainer.replay.run_copy import Replay, opened_copy
from trainer.stream.order.state import parse_state
from trainer.stream.order.stretches import is_in
from trainer.stream.step import RankStep

SHOWN = 10
"""The number of instances that are listed, and are left out of the step one after another."""
_STEPS_BEFORE = 100
_ROW = re.compile(rb'\{"step": (\d{1,18}), "split": "train"')


def blame_step(settings: AskSettings) -> None:
    """Explains the gradient of a step: rank 0 prints or writes the answer.

    Args:
        settings: The settings of the command.

    Raises:
        FileNotFoundError: The run or a dataset is missing, or the run has no checkpoint.
        ValueError: The run has not made the step, or it cannot be made again.
    """
    refuse_homeless_page(settings)
    LauncherWatch()
    ranks = start_ranks()
    options = parse_storage_options(settings.storage_options)
    try:
        with contextlib.ExitStack() as stack:
            asked: AskedRun | None = None
            found: tuple[Replay, StepContent] | None = None
            with together(ranks):
                if ranks.rank == 0:
                    opened = opened_run(settings.run, settings.data, options, settings.cache_dir)
                    asked = stack.enter_context(opened)
                    found = _find_step(settings, asked, options, ranks)
            replay, content = ranks.from_first(found)
            begin = replay.checkpoint or "the beginning"
            with opened_copy(replay, ranks) as copy:
                step_before = copy.position.step
                rank_step = _train_until(copy, content)
                copy.save()
                copy.saver.finish()
                model = _load_model(copy)
                norm_with_dropout = _norm_with_dropout(copy, model, rank_step, content)
                num_made = copy.position.step - step_before
            if asked is not None:
                facts = {
                    "begin": begin,
                    "steps_made": num_made,
                    "norm_with_dropout": _plain(norm_with_dropout),
                    **_recorded_norms(replay.run.store, content),
                }
                origins = None
                if settings.origins:
                    origins = open_origins(asked, Origins(asked.mixture, options))
                records = _answer(asked, content, model, replay.run, facts, origins)
                write_answer(settings, records)
    finally:
        stop_ranks()


def _find_step(
    settings: AskSettings, asked: AskedRun, options: Mapping[str, Any] | None, ranks: Ranks
) -> tuple[Replay, StepContent]:
    """Finds what the step read, and the checkpoint from which it is made again, on rank 0.

    Args:
        settings: The settings of the command.
        asked: The run.
        options: Options of the run's filesystem.
        ranks: All ranks. A line is printed if their number is not that of the run.
    """
    assert settings.blame is not None, "the settings ask about the gradient of a step"
    content = _read_step(asked, settings.blame)
    run = read_old_run(settings.run, options)
    checkpoint = choose_checkpoint(run, content)
    _say_steps(settings.run, run, checkpoint, content.step, ranks)
    cache_dir = settings.cache_dir or run.settings.cache_dir
    replay = Replay(run, checkpoint, tuple(settings.data), settings.storage_options, cache_dir)
    return replay, content


def _read_step(run: AskedRun, step: int) -> StepContent:
    """Returns what a step read.

    If the run has undone a step of this number, because of its gradient, and has made another one,
    the one that was undone is returned: it is the one to be explained.
    """
    reader = StepReader(run)
    refused = [*reader.read_refused(step)]
    if refused:
        return refused[-1]
    [content] = reader.read([step])
    return content


def choose_checkpoint(run: OldRun, content: StepContent) -> str | None:
    """Returns the newest checkpoint from which a step can be made again; None for the beginning.

    It is from before the step. A checkpoint in which the run has begun to skip the instances of the
    step, because it has undone the step, does not serve.

    Args:
        run: The run.
        content: What the step read.
    """
    start = np.array([content.position], np.int64)
    for name, position in reversed([*run.positions.items()]):
        plain = position.streams.get(str(content.seq_len))
        skips_it = plain is not None and bool(is_in(parse_state(plain).skipped, start)[0])
        if position.step < content.step and not skips_it:
            return name
    return None


def _say_steps(name: str, run: OldRun, checkpoint: str | None, step: int, ranks: Ranks) -> None:
    """Says which steps are made again, and if they will not have the bits of the run."""
    done = 0 if checkpoint is None else step_of(checkpoint)
    seconds = estimate_seconds(run.seconds, done, step - 1)
    hours = "" if seconds is None else f", {seconds / 3_600:.2f} hours at its rate"
    begin = "the beginning" if checkpoint is None else checkpoint
    lines = f"{name}: {step - 1 - done:,} steps are made again from {begin}{hours}"
    launches = run.facts["launches"]
    world_size = launches[-1]["world_size"] if launches else ranks.world_size
    if world_size != ranks.world_size:
        lines += (
            f"\n{name} was trained by {world_size} rank(s), these are {ranks.world_size}: the steps"
            " have the same batches, but not the same bits"
        )
    say(lines, is_aside=True)


def _train_until(copy: Run, content: StepContent) -> RankStep:
    """Makes the steps of a copy of a run up to the weights just before a step.

    All ranks call this function together.

    Args:
        copy: The copy.
        content: What the step read.

    Returns:
        This rank's share of the step, which is not made.

    Raises:
        ValueError: The copy does not come to this step.
    """
    caught: list[RankStep] = []

    def stops_before(rank_step: RankStep) -> bool:
        is_it = copy.position.step + 1 == content.step
        is_it = is_it and rank_step.first_position == content.position
        if is_it:
            caught.append(rank_step)
        return is_it

    copy.stops_before = stops_before
    while not copy.is_finished and not caught:
        train_phase(copy)
    if not caught:
        raise ValueError(
            f"step {content.step:,} cannot be made again: the steps before it, made again, do not"
            f" lead to its position {content.position:,}, because the run was trained by other"
            " ranks, on other hardware or with other software"
        )
    return caught[0]


def _load_model(copy: Run) -> BertForPreTraining:
    """Returns the model with the weights of the checkpoint that a copy has just saved.

    The weights are those that the optimizer updates, in fp32.
    """
    settings = copy.settings
    vocab_size = copy.mixture[0].dataset.manifest.vocab_size
    model = build_model(settings.model_config(vocab_size), settings.seed)
    freeze_unused(model, settings.objective)
    folder = copy.folder.checkpoints / f"step-{copy.position.step:08d}"
    model.load_state_dict(read_states(folder)["fp32"])
    return model


def _norm_with_dropout(
    copy: Run, model: BertForPreTraining, rank_step: RankStep, content: StepContent
) -> float:
    """Returns the norm of the gradient of a step, with the dropout that the run drew for it.

    All ranks call this function together.

    Args:
        copy: The copy of the run, just before the step.
        model: The model with the weights just before the step.
        rank_step: This rank's share of the step.
        content: What the step read.
    """
    ranks = copy.ranks
    settings = copy.settings
    counts = torch.tensor(count_labels(rank_step.micro_batches))
    torch.distributed.all_reduce(counts, group=ranks.counts_group)
    masked, instances = counts.tolist()
    model.train()
    seed_dropout(settings.seed, content.phase, copy.position.phase_step, ranks.rank)
    weight = nsp_weight_of(settings)
    gradients = gradient_of(model, rank_step.micro_batches, masked, instances, weight)
    for gradient in gradients:
        torch.distributed.all_reduce(gradient, group=ranks.counts_group)
    return norm_of(gradients)


def nsp_weight_of(settings: Any) -> float:
    """Returns the weight of the loss of sentence pairs; 0 if the objective does not have it."""
    return float(settings.nsp_weight) if settings.objective == WITH_NSP else 0.0


def _recorded_norms(store: CheckpointStore, content: StepContent) -> dict[str, Any]:
    """Returns what the run has recorded about the norms of a step and of the steps before it.

    Args:
        store: The files of the run.
        content: What the step read.

    Returns:
        "recorded_norm", the norm of the step; and "median_before", the median of the norms of
        "steps_before" steps before it. The first two are None if they were not recorded.
    """
    norms: dict[int, float | str] = {}
    if store.folder.exists(METRICS):
        first = content.step - _STEPS_BEFORE
        for line in store.folder.read(METRICS).splitlines():
            match = _ROW.match(line)
            if match is not None and first <= int(match[1]) <= content.step:
                norms[int(match[1])] = json.loads(line).get("grad_norm")
    recorded = norms.pop(content.step, None)
    if content.anomaly is not None:
        recorded = content.anomaly.grad_norm
    before = [norm for norm in norms.values() if isinstance(norm, float) and math.isfinite(norm)]
    return {
        "recorded_norm": recorded if isinstance(recorded, str | None) else _plain(recorded),
        "median_before": statistics.median(before) if before else None,
        "steps_before": len(before),
    }


def _answer(
    asked: AskedRun,
    content: StepContent,
    model: BertForPreTraining,
    run: OldRun,
    facts: Mapping[str, Any],
    origins: Origins | None,
) -> Sequence[Record]:
    """Computes and returns the records of the answer.

    Args:
        asked: The run.
        content: What the step read.
        model: The model with the weights just before the step.
        run: The run, with all its settings.
        facts: Values for the record of the step.
        origins: Looks up where documents are from; None leaves that out.
    """
    settings = run.settings
    step = StepGradient(
        model, content.block, settings.objective, nsp_weight_of(settings), settings.micro_tokens
    )
    norm = step.norm_without([])
    halves = [*find_by_halves(step.norm_without, step.num_slots)]
    shares = step.share_each()
    slots = [share.slot for share in shares[:SHOWN]]
    norms = [
        step.norm_without(slots[: number + 1]) if number + 1 < step.num_slots else None
        for number in range(len(slots))
    ]
    vocabulary = read_vocabulary(asked.mixture[0].dataset)
    culprits = []
    for share, without in zip(shares[:SHOWN], norms, strict=True):
        instance = describe_slot(asked, content, share.slot, vocabulary)
        found = {
            **asdict(share),
            "norm_without_first": None if without is None else _plain(without),
        }
        culprits.append({**instance, **found, "kind": "culprit"})
    blame = {
        "kind": "blame",
        "step": content.step,
        "is_undone": content.is_undone,
        "instances": step.num_slots,
        "norm": _plain(norm),
        "passes": step.num_passes + 1,  # one with dropout
        "single_passes": step.num_single_passes,
        **facts,
    }
    records: list[Record] = [blame]
    for half in halves:
        plain = {**asdict(half), "norm_without": _plain(half.norm_without)}
        records.append({"kind": "half", "step": content.step, **plain})
    records += culprits
    if origins is not None:
        records += _describe_documents(asked, content, slots, origins)
    return records


def _describe_documents(
    asked: AskedRun, content: StepContent, slots: Sequence[int], origins: Origins
) -> Iterator[Record]:
    """Yields a record for each document of some instances, in the order of the instances.

    Args:
        asked: The run.
        content: What the step read.
        slots: The slots of the instances.
        origins: Looks up where documents are from.
    """
    block = content.block
    pairs = [
        (int(content.dataset[slot]), f"{int(column[slot]):016x}")
        for slot in slots
        for column in (block.document_a, block.document_b)
    ]
    describe = partial(describe_origins, asked, origins)
    for pair in dict.fromkeys(pairs):
        yield from describe([pair])


def _plain(norm: float) -> float | str:
    """Returns a norm as JSON can hold it: as text if it is not finite."""
    return norm if math.isfinite(norm) else str(norm)
