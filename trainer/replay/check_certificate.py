"""Runs `python -m trainer ask RUN --certificate FILE`.

The claims of the certificate are checked one by one. The one about the weights is checked by making
steps of the run again, in a temporary copy, and comparing the files of the last checkpoint.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from pipeline.storage.folder import parse_storage_options
from pipeline.storage.terminal import say
from trainer.ask.command import refuse_homeless_page, write_answer
from trainer.ask.settings import AskSettings
from trainer.checkpoints.files import MODEL, read_marker, step_of
from trainer.forget.plan import estimate_seconds, read_old_run
from trainer.pretrain.loop import train_phase
from trainer.pretrain.run import Run
from trainer.process.ranks import Ranks, start_ranks, stop_ranks, together
from trainer.process.stopping import LauncherWatch
from trainer.replay.claims import (
    Claim,
    Inquiry,
    check_claims,
    judge,
    other_software,
    read_certificate,
)
from trainer.replay.run_copy import Replay, opened_copy


@dataclass(frozen=True)
class _Decision:
    """What rank 0 has found and decided before steps are made again.

    Attributes:
        inquiry: The certificate and the run.
        claims: The claims that were checked without training.
        stretch: The steps to make again, in words.
        replay: How to make them again; None if they cannot be.
        why_not: Why they cannot be made again; empty if they can.
    """

    inquiry: Inquiry
    claims: list[Claim]
    stretch: str
    replay: Replay | None
    why_not: str


def check_certificate(settings: AskSettings) -> int:
    """Checks a certificate on this rank, and prints or writes its claims on rank 0.

    Args:
        settings: The settings of the command.

    Returns:
        The exit code: 0 if the certificate was found to be right, which means that no claim is
        wrong and that the steps that were made again gave the same weights. Otherwise 1.

    Raises:
        FileNotFoundError: The run or the certificate is missing.
        ValueError: The certificate is not one, or is about another run. Or the run was trained by
            another number of ranks than these. Or a file of the run is damaged.
    """
    refuse_homeless_page(settings)
    LauncherWatch()
    ranks = start_ranks()
    try:
        decision: _Decision | None = None
        with together(ranks):
            if ranks.rank == 0:
                decision = _decide(settings, ranks)
        replay = ranks.from_first(decision.replay if decision else None)
        of_weights: Claim | None = None
        if replay is not None:
            with opened_copy(replay, ranks) as run:
                while not run.is_finished:
                    train_phase(run)
                run.saver.finish()
                if decision is not None:
                    of_weights = _compare(decision, run)
        elif decision is not None:
            text = f"{decision.stretch} give these files"
            of_weights = Claim(text, "cannot be checked", decision.why_not)
        is_right = False
        with together(ranks):
            if decision is not None and of_weights is not None:
                claims = [*decision.claims, of_weights]
                write_answer(settings, [claim.to_record() for claim in claims])
                is_right = _conclude(settings, claims, of_weights)
        return 0 if ranks.from_first(is_right) else 1
    finally:
        stop_ranks()


def _decide(settings: AskSettings, ranks: Ranks) -> _Decision:
    """Checks the claims that need no training, and decides which steps are made again."""
    assert settings.certificate is not None, "the settings ask about a certificate"
    certificate = read_certificate(settings.certificate)
    options = parse_storage_options(settings.storage_options)
    run = read_old_run(settings.run, options)
    if run.facts["id"] != certificate["new_run"]:
        raise ValueError(
            f"{settings.certificate} is about the run {certificate['new_run']}, and {settings.run}"
            f" is the run {run.facts['id']}; give the run that the certificate is about"
        )
    sizes = sorted({int(launch["world_size"]) for launch in certificate["launches"]})
    if len(sizes) == 1 and sizes[0] != ranks.world_size:
        raise ValueError(
            f"{settings.run} was trained by {sizes[0]} rank(s), these are {ranks.world_size}: other"
            f" ranks give other bits; start this command with {sizes[0]}, by the launcher if they"
            " are several"
        )
    inquiry = Inquiry(
        certificate=certificate,
        run=run,
        name=settings.run,
        data=settings.data,
        options=options,
        cache_dir=settings.cache_dir or run.settings.cache_dir,
    )
    last = step_of(certificate["checkpoint"])
    checkpoint = choose_start(
        settings.replay_from, certificate["from_checkpoint"], [*run.positions], last
    )
    begin = "the beginning" if checkpoint is None else checkpoint
    trunk_step = int(run.facts.get("trunk", {}).get("step", 0))
    done = trunk_step if checkpoint is None else step_of(checkpoint)
    stretch = f"steps {done + 1:,} to {last:,}, made again from {begin},"
    claims = check_claims(inquiry)
    why_not = ""
    if any(claim.verdict != "held" for claim in claims if claim.claim.startswith("dataset ")):
        why_not = "the datasets are not those of the certificate"
    elif len(sizes) > 1:
        why_not = f"launches of {' and '.join(map(str, sizes))} ranks have trained the run"
    replay = None
    if not why_not:
        seconds = estimate_seconds(run.seconds, done, last)
        hours = "" if seconds is None else f", {seconds / 3_600:.2f} hours at the run's rate"
        say(f"{settings.run}: {stretch} {last - done:,} steps{hours}", is_aside=True)
        replay = Replay(
            run, checkpoint, tuple(settings.data), settings.storage_options, inquiry.cache_dir
        )
    return _Decision(inquiry, claims, stretch, replay, why_not)


def choose_start(
    wanted: int | None, claimed: str | None, existing: Sequence[str], last: int
) -> str | None:
    """Returns the checkpoint from which steps are made again; None for the beginning of the run.

    Args:
        wanted: The step of the checkpoint that the user asks for; 0 for the beginning; None to
            choose one.
        claimed: The checkpoint from which the run went on, by its certificate; None if it began at
            its beginning.
        existing: The checkpoints of the run, oldest first.
        last: The step of the last checkpoint.

    Raises:
        ValueError: The run has no checkpoint of the wanted step, or no steps after it.
    """
    earlier = {step_of(name): name for name in existing if step_of(name) < last}
    if wanted is not None:
        if wanted and wanted not in earlier:
            steps = ", ".join(map(str, [0, *earlier]))
            raise ValueError(
                f"replay_from is {wanted}; the run can be made again from steps {steps}"
            )
        return earlier.get(wanted)
    if claimed is None or claimed in earlier.values():
        return claimed
    return earlier[max(earlier)] if earlier else None


def _compare(decision: _Decision, copy: Run) -> Claim:
    """Compares the last checkpoint of the copy with the hashes of the certificate.

    Args:
        decision: What was decided before.
        copy: The copy of the run, which has made its last step.
    """
    certificate = decision.inquiry.certificate
    folder = copy.folder.checkpoints / certificate["checkpoint"]
    claimed: Mapping[str, Any] = certificate["files"]
    actual = read_marker(folder) if folder.is_dir() else {}
    names = sorted({*claimed, *actual})
    wrong = [name for name in names if claimed.get(name) != actual.get(name)]
    text = f"{decision.stretch} give these files"
    if not wrong:
        return judge(text, is_right=True, why=f"all {len(names)} files are equal, to the bit")
    found = f"{', '.join(wrong)}: another content{_largest_difference(decision.inquiry, folder)}"
    launches = decision.inquiry.run.facts["launches"]
    gpus = {gpu for launch in launches for gpu in launch["hardware"]["gpus"]}
    excuses = [f"installed here: {entry}" for entry in other_software(certificate)]
    if gpus or copy.ranks.device.type != "cpu":
        excuses.append("steps on GPUs do not repeat to the bit")
    if excuses:
        return Claim(text, "cannot be checked", f"{found}; {'; '.join(excuses)}")
    return judge(text, is_right=False, why=found)


def _largest_difference(inquiry: Inquiry, folder: Path) -> str:
    """Returns in words how far the weights of a replay are from those of the run.

    The result is empty if the run is not on this machine, or its last checkpoint is gone.

    Args:
        inquiry: The certificate and the run.
        folder: The last checkpoint of the copy.
    """
    store = inquiry.run.store
    if not store.folder.is_local or not (folder / MODEL).is_file():
        return ""
    other = store.folder.local_path() / "checkpoints" / folder.name / MODEL
    if not other.is_file():
        return ""
    ours = load_file(folder / MODEL)
    theirs = load_file(other)
    if {name: tensor.shape for name, tensor in ours.items()} != {
        name: tensor.shape for name, tensor in theirs.items()
    }:
        return ""
    differences = [(ours[name].float() - theirs[name].float()).abs().max() for name in ours]
    largest = float(torch.stack(differences).max())
    return f"; the largest difference of a weight is {largest:.2g}"


def _conclude(settings: AskSettings, claims: Sequence[Claim], of_weights: Claim) -> bool:
    """Says on standard error whether a certificate was found to be right, and returns it.

    Args:
        settings: The settings of the command.
        claims: All claims.
        of_weights: The claim among them about the steps that were made again.
    """
    num_held = sum(claim.verdict == "held" for claim in claims)
    num_wrong = sum(claim.verdict == "not held" for claim in claims)
    is_right = not num_wrong and of_weights.verdict == "held"
    verdict = "is good" if is_right else "was not made good"
    say(
        f"{settings.certificate} {verdict}: {num_held} claims held, {num_wrong} did not, and"
        f" {len(claims) - num_held - num_wrong} could not be checked",
        is_aside=True,
    )
    return is_right
