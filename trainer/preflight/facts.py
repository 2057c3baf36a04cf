"""What one rank found on its machine: plain values that travel to rank 0."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class LocalFacts:
    """What needs no other rank; faults are messages for people, empty where all is well.

    Attributes:
        rank: Number of the rank.
        host: The rank's machine.
        local_ranks: Ranks on that machine.
        device: What the rank computes on.
        versions: Versions of software by name.
        gpu_free_share: Share of the GPU's memory that is free; None without a GPU.
        data_mb_per_second: Rate of reading from the datasets, whole blocks as in training.
        data_fault: Why the data could not be read.
        root_hashes: Root hashes of the datasets.
        output_fault: Why nothing can be written at the place of the output.
        disk_free_bytes: Free bytes at that place.
        shm_bytes: Size of /dev/shm; None where there is none.
        open_files: Soft limit of open files.
        lockable_bytes: Soft limit of memory that may be locked; None for no limit.
        has_infiniband: Whether there is an InfiniBand device, which needs locked memory.
        memory_bytes: Memory that is available on the machine, or to its control group where that is
            less.
    """

    rank: int
    host: str
    local_ranks: int
    device: str
    versions: Mapping[str, str]
    gpu_free_share: float | None
    data_mb_per_second: float | None
    data_fault: str
    root_hashes: tuple[str, ...]
    output_fault: str
    disk_free_bytes: int
    shm_bytes: int | None
    open_files: int
    lockable_bytes: int | None
    has_infiniband: bool
    memory_bytes: int


@dataclass(frozen=True)
class SharedFacts:
    """What ranks found out together.

    Attributes:
        clock_offset_seconds: How far every rank's clock is ahead of rank 0's.
        clock_error_seconds: Half of the round trip that it was measured with.
        link_mb_per_second: Rate from the rank before each, all at once; empty for a single rank.
        all_reduce_gb_per_second: Bus bandwidth, 2 (n - 1) / n times the bytes in the time; None for
            a single rank.
        sees_output: Whether each rank saw a file that rank 0 wrote at the place of the output.
        url_faults: Why each rank cannot use the URL for checkpoints, empty where it can; None
            without a URL.
    """

    clock_offset_seconds: tuple[float, ...]
    clock_error_seconds: tuple[float, ...]
    link_mb_per_second: tuple[float, ...]
    all_reduce_gb_per_second: float | None
    sees_output: tuple[bool, ...]
    url_faults: tuple[str, ...] | None = None
