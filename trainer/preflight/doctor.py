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

from pipeline.storage.folder import Folder, parse_storage_options
from trainer.preflight.settings import DoctorSettings
from trainer.process.ranks import Ranks, device_name, start_ranks, stop_ranks
from trainer.runs.launch import SOFTWARE, software_versions
from trainer.stream.order.source import open_mixture

_ROUNDS = 5
_CPU_BYTES, _GPU_BYTES = 8 * 2**20, 256 * 2**20


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
        found = ranks.gather(look_around(settings, ranks))
        seconds = max(ranks.gather(_time_all_reduce(ranks)))
        wrong = list(find_wrong(found))
        lines = format_findings(found, wrong, seconds) if ranks.rank == 0 else []
        return "\n".join(lines), int(bool(wrong))
    finally:
        stop_ranks()


def look_around(settings: DoctorSettings, ranks: Ranks) -> Findings:
    """Examines this rank. If something cannot be read or written, a fault is noted, not raised."""
    data, faults = list[str](), list[str]()
    advice = "give the credentials on this node too"
    with _noting(faults, f"cannot read the data; mount it or {advice}"):
        data.extend(_read_data(settings))
    with _noting(faults, "cannot write the output, as every rank must; give it the right to"):
        _write_output(Path(settings.output))
    with _noting(faults, f"cannot write and delete at --checkpoint.url; {advice}"):
        _write_url(settings)
    device = device_name(ranks.device)
    return Findings(ranks.rank, platform.node(), device, _versions(), tuple(data), tuple(faults))


@contextlib.contextmanager
def _noting(faults: list[str], what: str) -> Iterator[None]:
    """Appends the error of the block, after the text `what`, to `faults` instead of raising it."""
    try:
        yield
    except (OSError, ValueError) as error:
        faults.append(f"{what}: {error}")


def find_wrong(found: Sequence[Findings]) -> Iterator[str]:
    """Yields a line for every fault, and for every rank that differs from most ranks."""
    for each in found:
        yield from (f"{each}: {fault}" for fault in each.faults)
    for name in sorted({name for each in found for name in each.software}):
        yield from _find_others(found, name, [each.software.get(name, "none") for each in found])
    yield from _find_others(found, "device", [each.device for each in found])
    readers = [each for each in found if each.data]
    hashes = [", ".join(each.data) for each in readers]
    yield from _find_others(readers, "root hash of the data", hashes)


def format_findings(found: Sequence[Findings], wrong: Sequence[str], seconds: float) -> list[str]:
    """Returns lines about every rank, about what the ranks share, and about what is wrong.

    Args:
        found: The findings of all ranks.
        wrong: The lines of `find_wrong`.
        seconds: Seconds of an all-reduce between the ranks.
    """
    hosts = len({each.host for each in found})
    nodes = f"{len(found)} rank(s) of {hosts} node(s)"
    software = ", ".join(map(" ".join, found[0].software.items()))
    return [
        *(f"rank {each.rank}: {each.host}, {each.device}" for each in found),
        f"software: {software}",
        f"all-reduce: {1e3 * seconds:,.1f} ms" if len(found) > 1 else "all-reduce: a single rank",
        *(f"WRONG on {each}" for each in wrong),
        f"{len(wrong)} finding(s) on {nodes}" if wrong else f"all is well on {nodes}",
    ]


def _find_others(found: Sequence[Findings], name: str, values: Sequence[str]) -> Iterator[str]:
    """Yields a line for every rank whose value is not the most frequent one.

    Among equally frequent values the one that comes first is taken as usual.
    """
    for usual, count in Counter(values).most_common(1):
        for each, value in zip(found, values, strict=True):
            if value != usual:
                yield f"{each}: {name} is {value}; {count} of {len(found)} ranks have {usual}"


def _versions() -> dict[str, str]:
    """Returns the versions of the software that must be the same on all ranks, by name."""
    found = {"python": platform.python_version()} | software_versions(SOFTWARE)
    if torch.version.cuda:
        nccl: tuple[int, ...] = ()
        if torch.cuda.is_available():
            nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        found |= {"cuda": torch.version.cuda, "nccl": ".".join(map(str, nccl)) or "none"}
    return {name: version or "none" for name, version in found.items()}


def _read_data(settings: DoctorSettings) -> Iterator[str]:
    """Reads a block of each dataset, and yields the dataset's root hash."""
    if not settings.data:
        return
    for each in open_mixture(settings.data, parse_storage_options(settings.storage_options)):
        shard = each.dataset.all_shards[0]
        table = each.dataset.blocks(shard)
        start = int(table.offset[0])
        each.dataset.read_bytes(shard.name, start, start + int(table.size[0]))
        yield each.dataset.manifest.root_hash


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

    A first one, which opens connections, is not counted.
    """
    num_bytes = _GPU_BYTES if ranks.device.type == "cuda" else _CPU_BYTES
    payload = torch.zeros(num_bytes // 4, device=ranks.device)
    found = []
    for _ in range(_ROUNDS + 1):
        dist.barrier(group=ranks.counts_group)
        began = time.monotonic()
        dist.all_reduce(payload)
        if ranks.device.type == "cuda":
            torch.cuda.synchronize(ranks.device)
        found.append(time.monotonic() - began)
    return min(found[1:])
