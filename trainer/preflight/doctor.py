"""The command: every rank looks, rank 0 has a table and what is wrong."""

import platform
from collections import Counter
from collections.abc import Sequence

from trainer.preflight.facts import LocalFacts, SharedFacts
from trainer.preflight.judge import Finding, judge
from trainer.preflight.local import find_local_facts
from trainer.preflight.shared import find_shared_facts
from trainer.process.ranks import Ranks, start_ranks, stop_ranks
from trainer.tool_settings import DoctorSettings


def examine(settings: DoctorSettings) -> tuple[str, int]:
    """Examines all ranks of the job.

    Returns:
        What to print, which is empty but on rank 0, and the exit code of every rank: 0 when all is
            well, 1 when not.
    """
    ranks = start_ranks()
    try:
        local, shared = find_facts(settings, ranks)
        findings = judge(local, shared, settings.min_free_gb)
        lines = (
            [*format_table(local, shared), "", *format_findings(findings, local)]
            if ranks.rank == 0
            else []
        )
        return "\n".join(lines), int(bool(findings))
    finally:
        stop_ranks()


def find_facts(settings: DoctorSettings, ranks: Ranks) -> tuple[list[LocalFacts], SharedFacts]:
    """What every rank found, in order, and what all found together; equal on all ranks."""
    host = platform.node()
    mine = find_local_facts(settings, ranks, ranks.gather(host).count(host))
    return ranks.gather(mine), find_shared_facts(ranks, settings)


def format_table(local: Sequence[LocalFacts], shared: SharedFacts) -> list[str]:
    """A line for every rank, and what holds for all."""
    columns = (
        "rank",
        "host",
        "device",
        "clock",
        "link MB/s",
        "data MB/s",
        "/dev/shm",
        "files",
        "memory",
        "disk",
    )
    rows = [columns, *(_cells(each, shared) for each in local)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    versions = Counter(name for each in local for name in each.versions.items()).most_common()
    shown = {name: version for (name, version), _ in reversed(versions)}
    software = ", ".join(f"{name} {version}" for name, version in sorted(shown.items()))
    rate = shared.all_reduce_gb_per_second
    speed = "one rank, nothing to reduce" if rate is None else f"{rate:,.2f} GB/s of bus bandwidth"
    apart = sorted(
        {each.host for each, seen in zip(local, shared.sees_output, strict=True) if not seen}
    )
    place = (
        [f"run folders apart from rank 0's, which --checkpoint.url allows: {', '.join(apart)}"]
        if apart
        else []
    )
    return [
        *lines,
        "",
        f"all-reduce: {speed}",
        f"software: {software}",
        *(place if shared.url_faults else []),
    ]


def format_findings(findings: Sequence[Finding], local: Sequence[LocalFacts]) -> list[str]:
    """What is wrong; nodes that stand out by themselves at the end."""
    if not findings:
        return [
            f"all is well on {len(local)} rank(s) of {len({each.host for each in local})} node(s)"
        ]
    lines = [
        f"WRONG on rank {each.rank} ({each.host}): {each.what}\n  {each.advice}"
        for each in findings
    ]
    counted = Counter(each.host for each in findings)
    nodes = ", ".join(f"{host} ({count})" for host, count in counted.most_common())
    return [*lines, f"{len(findings)} finding(s), by node: {nodes}"]


def _cells(each: LocalFacts, shared: SharedFacts) -> tuple[str, ...]:
    rates, rank = shared.link_mb_per_second, each.rank
    data = "-" if each.data_mb_per_second is None else f"{each.data_mb_per_second:,.1f}"
    return (
        f"{rank}",
        each.host,
        each.device,
        f"{shared.clock_offset_seconds[rank]:+.3f} s ± {shared.clock_error_seconds[rank]:.3f}",
        f"{rates[rank]:,.0f}" if rates else "-",
        "unreadable" if each.data_fault else data,
        "none" if each.shm_bytes is None else f"{each.shm_bytes / 2**30:.1f} GiB",
        "unlimited" if each.open_files < 0 else f"{each.open_files:,}",
        f"{each.memory_bytes / 2**30:.1f} GiB",
        f"{each.disk_free_bytes / 1e9:,.0f} GB",
    )
