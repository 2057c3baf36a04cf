"""Runs `trainer doctor`: every rank examines its node, and rank 0 prints the findings."""

import contextlib
import os
import platform
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from pipeline.shards.growing import WaitPolicy
from pipeline.storage.folder import Folder, parse_storage_options
from trainer.conversion.names import VOCAB
from trainer.engine.deepspeed_config import deepspeed_config
from trainer.engine.deepspeed_file import passed_to_deepspeed
from trainer.first_checks import check_named_files
from trainer.preflight.settings import DoctorSettings
from trainer.pretrain.pairs import read_validation_pairs
from trainer.pretrain.run import (
    check_beginning,
    decide_precision,
    read_fitting_weights,
    resolve_epochs,
    with_choice,
)
from trainer.process.precision import Device, choose_precision, warn_of_slow_bf16, weakest
from trainer.process.ranks import Ranks, describe_device, device_name, start_ranks, stop_ranks
from trainer.runs.check_mixture import check_mixture
from trainer.runs.launch import SOFTWARE, software_versions
from trainer.settings import resolve
from trainer.stream.order.source import Mixture, WeightedDataset, open_mixture

_ROUNDS = 5
_CPU_BYTES = 8 * 2**20
_GPU_BYTES = 256 * 2**20
_NO_WAITING = WaitPolicy(limit_seconds=0)


@dataclass(frozen=True)
class Findings:
    """The findings of one rank.

    Attributes:
        rank: Number of the rank.
        host: Name of the node.
        device: Name of the rank's device.
        software: Versions by the name of the software.
        data: Root hashes of the datasets; empty if none was given or it could not be read.
        faults: Descriptions of what is wrong on the rank.
    """

    rank: int
    host: str
    device: str
    software: dict[str, str]
    data: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host})"


def examine(settings: DoctorSettings) -> tuple[str, int]:
    """Examines all ranks together.

    Returns:
        The text to print, which is empty on all ranks but 0; and the exit code, which is 1 on every
        rank if any rank is unfit.
    """
    ranks = start_ranks()
    try:
        findings = ranks.gather(look_around(settings, ranks))
        seconds = max(ranks.gather(_time_all_reduce(ranks)))
        wrong = list(find_wrong(findings))
        device = weakest(ranks.gather(describe_device(ranks.device)))
        lines = []
        if ranks.rank == 0:
            lines = [*describe_precision(settings, device)]
            lines += format_findings(findings, wrong, seconds)
        return "\n".join(lines), int(bool(wrong))
    finally:
        stop_ranks()


def describe_precision(settings: DoctorSettings, device: Device) -> Iterator[str]:
    """Yields the lines that a new run would print about its precision.

    A run prints one if the precision or the compilation was left open and the GPU decides, and one
    if a CPU is slow in bf16.

    Args:
        settings: The settings of the run.
        device: What all ranks' devices can do.
    """
    choice = choose_precision(device, settings.zero_stage, settings.precision, settings.compile)
    muon_precision = settings.optimizer.muon_precision
    warning = warn_of_slow_bf16(device, choice.precision, muon_precision)
    yield from filter(None, (choice.message, warning))


def look_around(settings: DoctorSettings, ranks: Ranks) -> Findings:
    """Examines this rank: its software, its data, its settings, and whether it can write.

    What cannot be read or written is noted in `Findings.faults`, and so are settings that pretrain
    would refuse. It raises nothing.
    """
    mixture: Mixture = ()
    data: list[str] = []
    faults: list[str] = []
    advice = "give the credentials on this node too"
    with _noting(faults, f"cannot read the data; mount it or {advice}"):
        mixture = _open_data(settings)
        data.extend(map(_read_dataset, mixture))
    with _noting(faults, "pretrain would refuse these settings"):
        _check_settings(settings, mixture, ranks)
    with _noting(faults, "cannot write the output, as every rank must; give it the right to"):
        _write_output(Path(settings.output))
    with _noting(faults, f"cannot write and delete at --checkpoint.url; {advice}"):
        _write_url(settings)
    device = device_name(ranks.device)
    return Findings(ranks.rank, platform.node(), device, _versions(), tuple(data), tuple(faults))


@contextlib.contextmanager
def _noting(faults: list[str], what: str) -> Iterator[None]:
    """Turns an OSError or ValueError of a `with` block into a fault, instead of raising it.

    Args:
        faults: The list to which the fault is appended, as "WHAT: ERROR".
        what: What the block could not do, with advice.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        faults.append(f"{what}: {error}")


def find_wrong(findings: Sequence[Findings]) -> Iterator[str]:
    """Yields a line for everything that is wrong.

    That is each fault that a rank has noted, and each rank whose software, device or data differ
    from those of most ranks.
    """
    for rank in findings:
        yield from (f"{rank}: {fault}" for fault in rank.faults)
    for name in sorted({name for rank in findings for name in rank.software}):
        versions = [rank.software.get(name, "none") for rank in findings]
        yield from _find_others(findings, name, versions)
    yield from _find_others(findings, "device", [rank.device for rank in findings])
    readers = [rank for rank in findings if rank.data]
    hashes = [", ".join(rank.data) for rank in readers]
    yield from _find_others(readers, "root hash of the data", hashes)


def format_findings(
    findings: Sequence[Findings], wrong: Sequence[str], seconds: float
) -> list[str]:
    """Returns lines about every rank, about what the ranks share, and about what is wrong.

    Args:
        findings: The findings of all ranks.
        wrong: The lines of `find_wrong`.
        seconds: Seconds of an all-reduce between the ranks.
    """
    num_ranks = len(findings)
    hosts = len({rank.host for rank in findings})
    nodes = f"{num_ranks} rank(s) of {hosts} node(s)"
    software = ", ".join(map(" ".join, findings[0].software.items()))
    return [
        *(f"rank {rank.rank}: {rank.host}, {rank.device}" for rank in findings),
        f"software: {software}",
        f"all-reduce: {1e3 * seconds:,.1f} ms" if num_ranks > 1 else "all-reduce: a single rank",
        *(f"WRONG on {line}" for line in wrong),
        f"{len(wrong)} finding(s) on {nodes}" if wrong else f"all is well on {nodes}",
    ]


def _find_others(findings: Sequence[Findings], name: str, values: Sequence[str]) -> Iterator[str]:
    """Yields a line for every rank on which a fact differs from that of most ranks.

    If several values are equally frequent, the first of them in the order of ranks is expected.

    Args:
        findings: The findings of the ranks to compare.
        name: What the fact is called in the lines.
        values: The value of the fact on each of these ranks.
    """
    for usual, count in Counter(values).most_common(1):
        for rank, value in zip(findings, values, strict=True):
            if value != usual:
                yield f"{rank}: {name} is {value}; {count} of {len(findings)} ranks have {usual}"


def _versions() -> dict[str, str]:
    """Returns the versions of the software that must be the same on all ranks, by name."""
    versions = {"python": platform.python_version()} | software_versions(SOFTWARE)
    if torch.version.cuda:
        nccl: tuple[int, ...] = ()
        if torch.cuda.is_available():
            nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        versions |= {"cuda": torch.version.cuda, "nccl": ".".join(map(str, nccl)) or "none"}
    return {name: version or "none" for name, version in versions.items()}


def _open_data(settings: DoctorSettings) -> Mixture:
    """Opens the datasets; none if none was given."""
    if not settings.data:
        return ()
    wait_policy = _NO_WAITING if settings.follow else None
    return open_mixture(settings.data, parse_storage_options(settings.storage_options), wait_policy)


def _read_dataset(source: WeightedDataset) -> str:
    """Reads a block of a dataset, and returns the dataset's root hash.

    No block is read of a dataset that is still being built.
    """
    dataset = source.dataset
    for shard in dataset.all_shards[:1]:
        table = dataset.blocks(shard)
        start = int(table.offset[0])
        dataset.read_bytes(shard.name, start, start + int(table.size[0]))
    return dataset.manifest.root_hash


def _check_settings(settings: DoctorSettings, mixture: Mixture, ranks: Ranks) -> None:
    """Checks the settings as pretrain does at its start, without phases if none were given.

    Files and folders that the settings name, other than datasets, are looked up on rank 0, which
    alone reads them in a training.

    Args:
        settings: The settings of the run.
        mixture: The datasets; empty if none was given, or if they could not be opened.
        ranks: All ranks.

    Raises:
        ValueError: Settings contradict each other, or do not fit the data, the model or run that
            the training begins with, or the number of ranks.
        FileNotFoundError: A file or folder that the settings name does not exist.
    """
    if settings.phases:
        settings = resolve(settings)
    config = check_mixture(settings, mixture, ranks.world_size)
    if ranks.rank > 0:
        return
    check_named_files(settings)
    read_validation_pairs(settings)
    if settings.phases and mixture:
        options = parse_storage_options(settings.storage_options)
        choice = decide_precision(settings, describe_device(ranks.device), options)
        given = passed_to_deepspeed(settings.deepspeed)
        deepspeed_config(given, settings.zero_stage, choice.precision)
        decided = with_choice(resolve_epochs(settings, mixture), choice)
        beginning = check_beginning(decided, mixture, options, _NO_WAITING)
        if beginning.weights is not None:
            vocabulary = mixture[0].dataset.locate(VOCAB)
            read_fitting_weights(beginning.weights, config, vocabulary, options)


def _write_output(folder: Path) -> None:
    """Writes a temporary file into a folder, or into the nearest parent that exists."""
    folder = folder.absolute()
    while not os.path.isdir(folder):  # Path.is_dir() raises where there is no right to look
        folder = folder.parent
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())


def _write_url(settings: DoctorSettings) -> None:
    """Writes and removes a small object in the folder that checkpoints are uploaded to."""
    if settings.checkpoint.url is not None:
        store = Folder(settings.checkpoint.url, parse_storage_options(settings.storage_options))
        name = f".beambert-doctor-{secrets.token_hex(8)}"
        store.write(name, b"doctor")
        store.remove([name])


def _time_all_reduce(ranks: Ranks) -> float:
    """Returns the seconds of the quickest of five all-reduces.

    Another all-reduce is made before these five and not timed, because it opens the connections.
    """
    num_bytes = _GPU_BYTES if ranks.device.type == "cuda" else _CPU_BYTES
    payload = torch.zeros(num_bytes // 4, device=ranks.device)
    times = []
    for _ in range(_ROUNDS + 1):
        dist.barrier(group=ranks.counts_group)
        began = time.monotonic()
        dist.all_reduce(payload)
        if ranks.device.type == "cuda":
            torch.cuda.synchronize(ranks.device)
        times.append(time.monotonic() - began)
    return min(times[1:])
