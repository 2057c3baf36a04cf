"""What is wrong with which node, and what to do: pure functions of the facts."""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from trainer.preflight.facts import LocalFacts, SharedFacts

Value = TypeVar("Value")

CLOCK_SECONDS = 1.0
"""Skew that makes logs misleading; object stores refuse requests from 5 to 15 minutes on."""
SLOW_SHARE = 0.25
"""Share of the median of the same kind: below it a link or a store is called slow."""
FEWEST_TO_COMPARE = 3
"""Ranks or links, to say which is slow."""
GPU_SHM_BYTES = 256 * 2**20
"""NCCL's ranks on one machine talk through /dev/shm; containers have 64 MB by default."""
RANK_MEMORY_BYTES = 2**30
"""Blocks read ahead (512 MiB) and the process itself."""
GPU_FREE_SHARE = 0.9


@dataclass(frozen=True)
class Finding:
    """Something that is wrong.

    Attributes:
        rank: Number of the rank that is unfit.
        host: Machine of the rank.
        what: What was found and what was expected.
        advice: What to do.
    """

    rank: int
    host: str
    what: str
    advice: str


def judge(local: Sequence[LocalFacts], shared: SharedFacts, min_free_gb: float) -> list[Finding]:
    """All that is wrong, rank by rank; empty when all is well.

    Args:
        local: What every rank found, in order.
        shared: What all ranks found together.
        min_free_gb: Space that the output needs.
    """
    findings = [
        *_versions(local),
        *_devices(local),
        *_clocks(local, shared),
        *_links(local, shared),
        *_data(local),
    ]
    findings += [*_output(local, shared, min_free_gb), *_url(local, shared), *_limits(local)]
    return sorted(findings, key=lambda each: each.rank)


def _versions(local: Sequence[LocalFacts]) -> Iterator[Finding]:
    """Software that differs from what most ranks have; of equal numbers, rank 0's side is right."""
    for name in sorted({name for each in local for name in each.versions}):
        found = [each.versions.get(name, "none") for each in local]
        usual = _most_common(found, "none")
        for each, version in zip(local, found, strict=True):
            if version != usual:
                what = (
                    f"{name} is {version}; {found.count(usual)} of {len(local)} ranks have {usual}"
                )
                yield Finding(
                    each.rank, each.host, what, "install the same environment on every node"
                )


def _devices(local: Sequence[LocalFacts]) -> Iterator[Finding]:
    usual = _most_common([each.device for each in local], "")
    for each in local:
        if each.device != usual:
            what = f"computes on {each.device}; most ranks on {usual}"
            yield Finding(
                each.rank,
                each.host,
                what,
                "every rank waits for the slowest: start it on equal devices",
            )
        if each.gpu_free_share is not None and each.gpu_free_share < GPU_FREE_SHARE:
            what = f"only {each.gpu_free_share:.0%} of the GPU's memory is free"
            yield Finding(
                each.rank, each.host, what, "nvidia-smi shows which process holds it: end that one"
            )


def _clocks(local: Sequence[LocalFacts], shared: SharedFacts) -> Iterator[Finding]:
    for each, offset, error in zip(
        local, shared.clock_offset_seconds, shared.clock_error_seconds, strict=True
    ):
        if abs(offset) - error > CLOCK_SECONDS:
            what = f"its clock is {abs(offset):,.1f} s {'ahead of' if offset > 0 else 'behind'} rank 0's"
            yield Finding(
                each.rank,
                each.host,
                what,
                "set it by NTP: systemctl status chronyd or systemd-timesyncd",
            )


def _links(local: Sequence[LocalFacts], shared: SharedFacts) -> Iterator[Finding]:
    """A slow link is told of the rank that receives; both links of a slow node are."""
    rates = shared.link_mb_per_second
    senders = [local[index - 1] for index in range(len(rates))]
    for is_inside in (True, False):
        kind = [
            index
            for index in range(len(rates))
            if (senders[index].host == local[index].host) == is_inside
        ]
        for index in _slow([rates[each] for each in kind]):
            each, sender = local[kind[index]], senders[kind[index]]
            usual = statistics.median(rates[each] for each in kind)
            what = f"receives {rates[kind[index]]:,.0f} MB/s from rank {sender.rank} ({sender.host}), usual {usual:,.0f}"
            yield Finding(
                each.rank,
                each.host,
                what,
                "look at the cable, the interface (NCCL_SOCKET_IFNAME) and its load",
            )


def _data(local: Sequence[LocalFacts]) -> Iterator[Finding]:
    usual = _most_common([each.root_hashes for each in local if not each.data_fault], ())
    for each in local:
        if each.data_fault:
            advice = "mount the data or give the credentials on this node too"
            yield Finding(each.rank, each.host, f"cannot read the data: {each.data_fault}", advice)
        elif each.root_hashes != usual:
            shown = ", ".join(value[:16] for value in each.root_hashes)
            advice = "copy the same dataset to every node, or give its URL"
            yield Finding(each.rank, each.host, f"reads another dataset: root hash {shown}", advice)
    readers = [each for each in local if each.data_mb_per_second is not None]
    rates = [each.data_mb_per_second or 0.0 for each in readers]
    for index in _slow(rates):
        what = (
            f"reads the data at {rates[index]:,.1f} MB/s, usual is {statistics.median(rates):,.1f}"
        )
        advice = "look at its network and mount; --cache_dir keeps what was read"
        yield Finding(readers[index].rank, readers[index].host, what, advice)


def _output(
    local: Sequence[LocalFacts], shared: SharedFacts, min_free_gb: float
) -> Iterator[Finding]:
    for each, seen in zip(local, shared.sees_output, strict=True):
        if each.output_fault:
            advice = "checkpoints are written by every rank: give it the right to write"
            yield Finding(
                each.rank, each.host, f"cannot write the output: {each.output_fault}", advice
            )
        if not seen and shared.url_faults is None:
            advice = "give an --output that all nodes mount, or --checkpoint.url, by which each may have one of its own"
            yield Finding(
                each.rank, each.host, "does not see what rank 0 writes at --output", advice
            )
        if each.disk_free_bytes < min_free_gb * 1e9:
            what = f"{each.disk_free_bytes / 1e9:,.1f} GB are free for the output, {min_free_gb:,g} are wanted"
            advice = "`trainer plan` says what checkpoints take; make room, or keep fewer"
            yield Finding(each.rank, each.host, what, advice)


def _url(local: Sequence[LocalFacts], shared: SharedFacts) -> Iterator[Finding]:
    for each, fault in zip(local, shared.url_faults or [""] * len(local), strict=True):
        if fault:
            advice = "give the credentials on this node too, with the right to write, list and delete, or another URL"
            yield Finding(each.rank, each.host, f"--checkpoint.url: {fault}", advice)


def _limits(local: Sequence[LocalFacts]) -> Iterator[Finding]:
    needed_files = 512 + 4 * len(local)
    for each in local:
        if (
            each.gpu_free_share is not None
            and each.shm_bytes is not None
            and each.shm_bytes < GPU_SHM_BYTES
        ):
            what = f"/dev/shm holds {each.shm_bytes / 2**20:,.0f} MiB, NCCL needs some {GPU_SHM_BYTES // 2**20}"
            yield Finding(
                each.rank,
                each.host,
                what,
                "docker run --shm-size=8g; in Kubernetes an emptyDir of medium Memory",
            )
        if 0 <= each.open_files < needed_files:
            what = (
                f"may open {each.open_files:,} files, {len(local)} ranks need some {needed_files:,}"
            )
            yield Finding(
                each.rank, each.host, what, "ulimit -n 65536, or LimitNOFILE of the service"
            )
        if each.has_infiniband and each.lockable_bytes is not None and each.lockable_bytes < 2**30:
            what = (
                f"may lock {each.lockable_bytes / 2**20:,.0f} MiB of memory, InfiniBand needs more"
            )
            yield Finding(
                each.rank, each.host, what, "ulimit -l unlimited; docker run --ulimit memlock=-1"
            )
        if each.memory_bytes < RANK_MEMORY_BYTES * each.local_ranks:
            what = f"{each.memory_bytes / 2**30:.1f} GiB of memory are available for {each.local_ranks} rank(s)"
            yield Finding(
                each.rank,
                each.host,
                what,
                "a rank needs 1 GiB and more: raise the limit or start fewer ranks",
            )


def _slow(rates: Sequence[float]) -> list[int]:
    """Places of rates far below the median, where there are enough to compare."""
    if len(rates) < FEWEST_TO_COMPARE:
        return []
    return [
        place for place, rate in enumerate(rates) if rate < SLOW_SHARE * statistics.median(rates)
    ]


def _most_common(values: Sequence[Value], default: Value) -> Value:
    """The most frequent value, of equally frequent ones the earlier; the default without values."""
    counted = Counter(values).most_common(1)
    return counted[0][0] if counted else default
