"""What ranks find out together: clocks, links, all-reduce, one output folder or URL."""

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.storage.folder import Folder, parse_storage_options
from trainer.preflight.facts import SharedFacts
from trainer.preflight.local import existing_folder
from trainer.process.ranks import Ranks
from trainer.tool_settings import DoctorSettings

ROUNDS = 5
SEEN_SECONDS = 5.0
"""How long a network file system may take to show a new file."""
_CPU_BYTES, _GPU_BYTES = 8 * 2**20, 256 * 2**20


def find_shared_facts(ranks: Ranks, settings: DoctorSettings) -> SharedFacts:
    """Measures with all ranks; equal on all of them."""
    offsets = compare_clocks(ranks)
    rates = ranks.gather(_link_rate(ranks)) if ranks.world_size > 1 else []
    return SharedFacts(
        clock_offset_seconds=tuple(offset for offset, _ in offsets),
        clock_error_seconds=tuple(error for _, error in offsets),
        link_mb_per_second=tuple(rates),
        all_reduce_gb_per_second=_all_reduce_rate(ranks) if ranks.world_size > 1 else None,
        sees_output=tuple(ranks.gather(_sees_output(ranks, settings.output))),
        url_faults=tuple(ranks.gather(_try_url(ranks, settings)))
        if settings.checkpoint.url
        else None,
    )


def compare_clocks(ranks: Ranks) -> list[tuple[float, float]]:
    """Offset of every rank's clock against rank 0's, and its possible error.

    Rank 0 asks one rank after another for its time; half of the round trip is the most the answer
    can be off.
    """
    found = [(0.0, 0.0)] * ranks.world_size
    answer = torch.zeros(1, dtype=torch.float64)
    for other in range(1, ranks.world_size):
        trips = []
        for _ in range(ROUNDS):
            if ranks.rank == 0:
                asked = time.time()
                dist.send(answer, other, group=ranks.counts_group)
                dist.recv(answer, other, group=ranks.counts_group)
                done = time.time()
                trips.append((done - asked, float(answer) - (asked + done) / 2))
            elif ranks.rank == other:
                dist.recv(answer, 0, group=ranks.counts_group)
                dist.send(
                    torch.tensor([time.time()], dtype=torch.float64), 0, group=ranks.counts_group
                )
        if trips:
            trip, offset = min(trips)
            found[other] = (offset, trip / 2)
    received: list[Any] = [found]
    dist.broadcast_object_list(received, src=0, group=ranks.counts_group)
    return [(float(offset), float(error)) for offset, error in received[0]]


def _link_rate(ranks: Ranks) -> float:
    """MB a second from the rank before this one, while all ranks send to the next."""
    mine = _payload(ranks)
    other = torch.empty_like(mine)
    after, before = (ranks.rank + 1) % ranks.world_size, (ranks.rank - 1) % ranks.world_size

    def pass_on() -> None:
        sends = [dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, other, before)]
        for work in dist.batch_isend_irecv(sends):
            work.wait()

    return mine.nbytes / 1e6 / _best_seconds(ranks, pass_on)


def _all_reduce_rate(ranks: Ranks) -> float:
    """GB a second of the bus, as NCCL's tests count it: comparable between numbers of ranks."""
    payload = _payload(ranks)
    seconds = _best_seconds(ranks, lambda: dist.all_reduce(payload))
    slowest: float = max(ranks.gather(seconds))
    return 2 * (ranks.world_size - 1) / ranks.world_size * payload.nbytes / 1e9 / slowest


def _payload(ranks: Ranks) -> Tensor:
    num_bytes = _GPU_BYTES if ranks.device.type == "cuda" else _CPU_BYTES
    return torch.zeros(num_bytes // 4, device=ranks.device)


def _best_seconds(ranks: Ranks, communicate: Callable[[], object]) -> float:
    """The quickest of some rounds; the first, which opens connections, does not count."""
    communicate()
    found = []
    for _ in range(ROUNDS):
        dist.barrier(group=ranks.counts_group)
        began = time.monotonic()
        communicate()
        if ranks.device.type == "cuda":
            torch.cuda.synchronize(ranks.device)
        found.append(time.monotonic() - began)
    return min(found)


def _sees_output(ranks: Ranks, output: str) -> bool:
    """Whether a file that rank 0 writes beside the run's folder is there for this rank."""
    marker: list[Any] = [None]
    if ranks.rank == 0:
        path = existing_folder(output) / f".beambert-doctor-{secrets.token_hex(8)}"
        try:
            path.write_bytes(b"")
            marker = [str(path)]
        except OSError:
            pass  # said by the check of the output's rights
    dist.broadcast_object_list(marker, src=0, group=ranks.counts_group)
    seen = marker[0] is None or _appears(Path(marker[0]).exists)
    dist.barrier(group=ranks.counts_group)
    if ranks.rank == 0 and marker[0] is not None:
        Path(marker[0]).unlink(missing_ok=True)
    return seen


def _try_url(ranks: Ranks, settings: DoctorSettings) -> str:
    """Why this rank cannot write, see rank 0's object or delete at the URL; empty where it can."""
    mine = f".beambert-doctor-{secrets.token_hex(8)}"
    fault = _fault_of(lambda: _store(settings).write(mine, b"doctor"))
    first = ranks.gather(None if fault else mine)[0]
    unseen = _fault_of(lambda: _expect_object(settings, first)) if first and not fault else ""
    dist.barrier(group=ranks.counts_group)
    return fault or _fault_of(lambda: _store(settings).remove([mine])) or unseen


def _store(settings: DoctorSettings) -> Folder:
    assert settings.checkpoint.url is not None
    return Folder(settings.checkpoint.url, parse_storage_options(settings.storage_options))


def _expect_object(settings: DoctorSettings, name: str) -> None:
    if not _appears(lambda: _store(settings).exists(name)):
        raise FileNotFoundError(f"{settings.checkpoint.url} does not show what rank 0 writes there")


def _fault_of(action: Callable[[], object]) -> str:
    try:
        action()
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def _appears(is_there: Callable[[], bool]) -> bool:
    """Whether something is there, or comes to be within SEEN_SECONDS."""
    deadline = time.monotonic() + SEEN_SECONDS
    while not (found := is_there()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found
