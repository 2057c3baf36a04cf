"""`python -m trainer stream`: what every rank would read, without a model.

A dry run of an order and a benchmark of a store: real reads, real checks, real packing.
"""

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from pipeline.shards.block import Array
from pipeline.storage.folder import parse_storage_options
from trainer.preflight.settings import StreamSettings
from trainer.process.allocator import keep_freed_memory
from trainer.settings import PretrainSettings
from trainer.stream.cache import STRETCH_BYTES, open_cache
from trainer.stream.rank_steps import RankStep
from trainer.stream.source import Mixture, open_mixture
from trainer.stream.step import StepLoader

STALL_SECONDS = 0.05


@dataclass(frozen=True)
class RankReport:
    """What one rank read.

    Attributes:
        rank: Number of the rank.
        instances: Instances of all steps.
        tokens: Tokens of all steps.
        step_tokens: Tokens of each step, [S] int64.
        drawn: Instances and tokens of every dataset, [D, 2] int64.
        requests: How many ranged reads there were.
        blocks: Blocks they fetched.
        num_bytes: Bytes they fetched.
        seconds: Time from the start to the last step.
        stalls: Steps after the first that were waited for longer than STALL_SECONDS.
        first_seconds: Time until the first step.
        epochs: How many epochs of every dataset were read, at the end.
        found_bytes: Bytes of the stretches of shards that the cache had.
        fetched_bytes: Bytes of those that it got from the store.
    """

    rank: int
    instances: int
    tokens: int
    step_tokens: Array
    drawn: Array
    requests: int
    blocks: int
    num_bytes: int
    seconds: float
    stalls: int
    first_seconds: float
    epochs: tuple[float, ...]
    found_bytes: int = 0
    fetched_bytes: int = 0


def report_stream(settings: StreamSettings) -> str:
    """Reads the share of one rank after another; a table.

    Raises:
        ValueError: Settings and data do not fit.
    """
    keep_freed_memory()
    mixture = open_mixture(settings.data, parse_storage_options(settings.storage_options))
    seq_len = settings.seq_len or min(group.seq_len for group in mixture[0].dataset.manifest.groups)
    reports = []
    for rank in range(settings.world_size):
        report, num_lanes = _read_rank(mixture, seq_len, settings, rank)
        reports.append(report)
    return format_reports(mixture, seq_len, num_lanes, reports)


def format_reports(
    mixture: Mixture, seq_len: int, num_lanes: int, reports: Sequence[RankReport]
) -> str:
    """The table, a line for every rank, and what holds for all."""
    columns = (
        "rank",
        "instances",
        "tokens",
        "requests",
        "blocks",
        "MB",
        "tokens/s",
        "MB/s",
        "first step s",
        "stalls",
    )
    rows = [
        (
            f"{each.rank}",
            f"{each.instances:,}",
            f"{each.tokens:,}",
            f"{each.requests:,}",
            f"{each.blocks:,}",
            f"{each.num_bytes / 1e6:,.1f}",
            f"{each.tokens / each.seconds:,.0f}",
            f"{each.num_bytes / 1e6 / each.seconds:,.1f}",
            f"{each.first_seconds:.2f}",
            f"{each.stalls}",
        )
        for each in reports
    ]
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    table = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in (columns, *rows)
    ]
    return "\n".join([*table, "", *_totals(mixture, seq_len, num_lanes, reports)])


def _totals(
    mixture: Mixture, seq_len: int, num_lanes: int, reports: Sequence[RankReport]
) -> list[str]:
    tokens_RS = np.stack([each.step_tokens for each in reports])
    balance_S, num_steps = tokens_RS.max(0) / tokens_RS.mean(0), tokens_RS.shape[1]
    num_bytes, instances = (
        sum(each.num_bytes for each in reports),
        sum(each.instances for each in reports),
    )
    needed = _bytes_of_instances(mixture, seq_len, reports)
    lines = [
        f"{num_steps} steps of {instances // num_steps:,} instances on {len(reports)} rank(s), {num_lanes} lanes,"
        f" length {seq_len}",
        f"read amplification {num_bytes / needed:.2f}: {num_bytes / 1e6:,.1f} MB fetched for instances that take"
        f" {needed / 1e6:,.1f} MB of their shards",
        f"tokens of the fullest rank over the mean: {balance_S.mean():.3f}, at most {balance_S.max():.3f}",
    ]
    found, fetched = (
        sum(getattr(each, name) for each in reports) for name in ("found_bytes", "fetched_bytes")
    )
    if found + fetched:
        lines.append(
            f"cache: {100 * found / (found + fetched):.1f} % hits, {found / 1e6:,.1f} MB found there and"
            f" {fetched / 1e6:,.1f} MB got from the store in stretches of {STRETCH_BYTES // 2**20} MiB"
        )
    for d, each in enumerate(mixture):
        drawn, tokens = sum(report.drawn[d] for report in reports)
        lines.append(
            f"{each.name}: {drawn:,} instances, {tokens:,} tokens, {reports[0].epochs[d]:.4f} epochs"
        )
    if num_lanes < len(reports):
        lines.append(
            f"ranks share lanes, and read the same blocks: {num_lanes} lanes are few; a larger dataset has more"
        )
    return lines


def _bytes_of_instances(mixture: Mixture, seq_len: int, reports: Sequence[RankReport]) -> float:
    """What the instances read would take if every block were read once and used whole."""
    total = 0.0
    for d, each in enumerate(mixture):
        shards = [
            shard
            for shard in each.dataset.all_shards
            if (shard.split, shard.seq_len) == ("train", seq_len)
        ]
        mean = sum(shard.num_bytes for shard in shards) / sum(shard.instances for shard in shards)
        total += mean * sum(int(report.drawn[d, 0]) for report in reports)
    return total


def _read_rank(
    mixture: Mixture, seq_len: int, settings: StreamSettings, rank: int
) -> tuple[RankReport, int]:
    reading = settings.reading.with_cache(settings.cache_dir, settings.cache_bytes)
    cache = open_cache(settings.cache_dir, settings.cache_bytes) if settings.cache_dir else None
    found, fetched = (cache.found_bytes, cache.fetched_bytes) if cache else (0, 0)
    num_steps = settings.steps or _steps_of_epoch(mixture, seq_len, settings.global_batch)
    began = time.monotonic()
    step_tokens = array("q")
    drawn = np.zeros((len(mixture), 2), np.int64)
    last: RankStep | None = None
    first_seconds, stalls = 0.0, 0
    with (
        StepLoader(
            mixture,
            "train",
            seq_len,
            rank=rank,
            world_size=settings.world_size,
            global_batch=settings.global_batch,
            micro_tokens=PretrainSettings.micro_tokens,
            seed=settings.seed,
            num_steps=num_steps,
            reading=reading,
        ) as loader,
        tqdm(total=num_steps, desc=f"rank {rank}", unit="step", leave=False) as bar,
    ):
        for step in loader:
            first_seconds = first_seconds or time.monotonic() - began
            stalls += last is not None and loader.wait_seconds > STALL_SECONDS
            step_tokens.append(step.num_tokens)
            drawn += step.drawn
            last = step
            bar.update()
        reads, num_lanes = loader.reads, loader.num_lanes
    seconds = time.monotonic() - began
    assert last is not None, "there is at least one step"
    report = RankReport(
        rank=rank,
        instances=int(drawn[:, 0].sum()),
        tokens=int(drawn[:, 1].sum()),
        step_tokens=np.array(step_tokens),
        drawn=drawn,
        requests=reads.requests,
        blocks=reads.blocks,
        num_bytes=reads.bytes,
        seconds=seconds,
        stalls=stalls,
        first_seconds=first_seconds,
        epochs=last.epochs,
        found_bytes=cache.found_bytes - found if cache else 0,
        fetched_bytes=cache.fetched_bytes - fetched if cache else 0,
    )
    return report, num_lanes


def _steps_of_epoch(mixture: Mixture, seq_len: int, global_batch: int) -> int:
    """Steps until the first dataset was drawn from as often as its first pass has instances."""
    own = sum(shard.instances for shard in mixture[0].dataset.shards("train", seq_len, 0))
    return -(-own * sum(each.weight for each in mixture) // (mixture[0].weight * global_batch))
