"""What a rank can find out alone."""

import os
import platform
import resource
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from pipeline.storage.folder import parse_storage_options
from trainer.preflight.facts import LocalFacts
from trainer.process.ranks import Ranks, device_name
from trainer.runs.launch import SOFTWARE, software_versions
from trainer.stream.source import Mixture, open_mixture
from trainer.tool_settings import DoctorSettings

READ_BYTES, READ_SECONDS = 64_000_000, 10.0
_SHM = Path("/dev/shm")


def find_local_facts(settings: DoctorSettings, ranks: Ranks, local_ranks: int) -> LocalFacts:
    """Looks at this machine; what cannot be read or written becomes a fault, not an error."""
    rate, hashes, data_fault = _try_data(settings, ranks)
    place = existing_folder(settings.output)
    return LocalFacts(
        rank=ranks.rank,
        host=platform.node(),
        local_ranks=local_ranks,
        device=device_name(ranks.device),
        versions=find_versions(),
        gpu_free_share=_gpu_free_share(ranks),
        data_mb_per_second=rate,
        data_fault=data_fault,
        root_hashes=hashes,
        output_fault=_try_output(place),
        disk_free_bytes=shutil.disk_usage(place).free,
        shm_bytes=shutil.disk_usage(_SHM).total if _SHM.is_dir() else None,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        lockable_bytes=_limit(resource.RLIMIT_MEMLOCK),
        has_infiniband=Path("/sys/class/infiniband").is_dir()
        and any(Path("/sys/class/infiniband").iterdir()),
        memory_bytes=_available_memory(),
    )


def find_versions() -> Mapping[str, str]:
    """Software that all ranks must agree on, by name."""
    found = {"python": platform.python_version()} | software_versions(SOFTWARE)
    if torch.version.cuda:
        nccl = torch.cuda.nccl.version() if torch.cuda.is_available() else ()  # type: ignore[no-untyped-call]
        found |= {"cuda": torch.version.cuda, "nccl": ".".join(map(str, nccl)) or "none"}
    return {name: version or "none" for name, version in found.items()}


def existing_folder(path: str) -> Path:
    """The folder itself, or the nearest above it that exists."""
    folder = Path(path).absolute()
    while not os.path.isdir(folder):  # Path.is_dir() raises where there is no right to look
        folder = folder.parent
    return folder


def _try_data(settings: DoctorSettings, ranks: Ranks) -> tuple[float | None, tuple[str, ...], str]:
    if not settings.data:
        return None, (), ""
    try:
        mixture = open_mixture(settings.data, parse_storage_options(settings.storage_options))
        rate = _read_rate(mixture, ranks)
    except (OSError, ValueError) as error:
        return None, (), str(error)
    return rate, tuple(each.dataset.manifest.root_hash for each in mixture), ""


def _read_rate(mixture: Mixture, ranks: Ranks) -> float:
    """MB a second of whole blocks, from another shard on each rank, for a while."""
    began, num_bytes = time.monotonic(), 0
    for each in mixture:
        shards = each.dataset.all_shards
        for turn in range(len(shards)):
            shard = shards[(ranks.rank + turn) % len(shards)]
            table = each.dataset.blocks(shard)
            for start, size in zip(table.offset.tolist(), table.size.tolist(), strict=True):
                num_bytes += len(each.dataset.read_bytes(shard.name, start, start + size))
                if num_bytes >= READ_BYTES or time.monotonic() - began > READ_SECONDS:
                    return num_bytes / 1e6 / (time.monotonic() - began)
    return num_bytes / 1e6 / (time.monotonic() - began)


def _try_output(place: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"{place}: {error.strerror}"
    return ""


def _gpu_free_share(ranks: Ranks) -> float | None:
    if ranks.device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(ranks.device)
    return free / total


def _limit(kind: int) -> int | None:
    soft = resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _available_memory() -> int:
    """Bytes that the machine has left by /proc/meminfo, or what a control group still allows."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            available = 1024 * int(line.split()[1])
    most, used = (
        _read("/sys/fs/cgroup/memory.max").strip(),
        _read("/sys/fs/cgroup/memory.current").strip(),
    )
    if most.isdigit() and used.isdigit():
        available = min(available, int(most) - int(used))
    return available


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
