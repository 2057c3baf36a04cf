"""`python -m trainer stream --plan true`: what all ranks together would ask of the store."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from tqdm import tqdm

from pipeline.shards.block import Array, block_instances
from pipeline.storage.folder import parse_storage_options
from trainer.preflight.settings import StreamSettings
from trainer.settings import PretrainSettings
from trainer.stream.dry_run import DryReader, RankRequests
from trainer.stream.known import KnownPasses
from trainer.stream.pace import ALL_RANKS_PER_SECOND, MOST_FREE_RANKS
from trainer.stream.rank_steps import StepSizes
from trainer.stream.share import MANY_TIMES, default_num_lanes
from trainer.stream.source import open_mixture

NODE_RANKS = 8
"""Ranks of one machine."""

PREFIX_REQUESTS = 5500
"""GET requests a second that S3 states for one prefix."""

STORE_REQUESTS = {"a new bucket of Google's": 5000, "an account of Azure": 20_000}
"""Read requests a second that other stores state, for all prefixes together."""


@dataclass(frozen=True)
class Moment:
    """A place in training: ranks that begin to read at a step."""

    name: str
    step: int
    world_size: int


@dataclass(frozen=True)
class Load:
    """What all ranks of a moment ask for.

    Attributes:
        moment: Which.
        block_bytes: Bytes of all blocks fetched, each as often as it is fetched.
        different_bytes: The same, each block once.
        cached_bytes: The same, each block once for every node.
        at_once: Requests of all ranks before the first step.
        node_requests: Requests by node.
        node_bytes: Bytes of these, headers between blocks included.
        prefix_requests: Requests by folder of shards.
        prefix_bytes: Bytes of these, by folder.
        buffer_bytes: Memory for blocks of the rank that takes most.
    """

    moment: Moment
    block_bytes: int
    different_bytes: int
    cached_bytes: int
    at_once: int
    node_requests: tuple[int, ...]
    node_bytes: tuple[int, ...]
    prefix_requests: dict[str, int]
    prefix_bytes: dict[str, int]
    buffer_bytes: int


def report_requests(settings: StreamSettings) -> str:
    """The plan as a table.

    Raises:
        ValueError: Settings and data do not fit.
    """
    mixture = open_mixture(settings.data, parse_storage_options(settings.storage_options))
    seq_len = settings.seq_len or min(group.seq_len for group in mixture[0].dataset.manifest.groups)
    passes = KnownPasses(mixture, "train", seq_len)
    passes.wait_for(0)
    num_lanes = default_num_lanes(
        settings.global_batch, passes.first_pass_instances, block_instances(seq_len)
    )
    steps_of_epoch = _steps_of_epoch(passes, settings.global_batch)
    num_steps = settings.steps or steps_of_epoch
    reader = DryReader(passes, settings.reading.with_cache(None, settings.cache_bytes))
    loads = []
    for moment in plan_moments(settings.world_size, steps_of_epoch, num_steps):
        begin = passes.state(moment.step * settings.global_batch, settings.seed, num_lanes)
        sizes = (
            StepSizes(
                rank,
                moment.world_size,
                settings.global_batch,
                max(seq_len, PretrainSettings.micro_tokens),
            )
            for rank in range(moment.world_size)
        )
        ranks = (reader.count(begin, each, num_steps) for each in sizes)
        bar = tqdm(ranks, desc=moment.name, total=moment.world_size, unit="rank", leave=False)
        loads.append(add_up(moment, bar, passes))
    seconds = num_steps * settings.step_seconds
    head = (
        f"{num_steps:,} steps of {settings.global_batch:,} instances in {settings.step_seconds:g} s each,"
        f" {num_lanes} lanes, length {seq_len}, {NODE_RANKS} ranks a node"
    )
    return "\n".join([head, "", *_table(loads, seconds), "", *_advice(loads, num_lanes, seconds)])


def plan_moments(world_size: int, steps_of_epoch: int, num_steps: int) -> tuple[Moment, ...]:
    """Where ranks begin; those that go on have lost a node, or half of a single one."""
    fewer = world_size - NODE_RANKS if world_size > NODE_RANKS else max(1, world_size // 2)
    middle = steps_of_epoch // 2
    return (
        Moment("start", 0, world_size),
        Moment("middle", middle, world_size),
        Moment("epoch's end", max(0, steps_of_epoch - num_steps // 2), world_size),
        Moment("resume", middle, fewer),
    )


def add_up(moment: Moment, ranks: Iterable[RankRequests], passes: KnownPasses) -> Load:
    """What the ranks of a moment ask for together, given in their order."""
    folders = [shard.name.rpartition("/")[0] for shard in passes.shards]
    names, prefix_of = np.unique(folders, return_inverse=True)
    requests, fetched = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
    node_requests, node_bytes = [], []
    different: dict[int, int] = {}
    block_bytes = cached_bytes = at_once = buffer_bytes = 0
    for node in _nodes(ranks):
        prefix = prefix_of[np.concatenate([each.shards for each in node])]
        num_bytes = np.concatenate([each.num_bytes for each in node])
        requests += np.bincount(prefix, minlength=len(names))
        np.add.at(fetched, prefix, num_bytes)
        node_requests.append(len(prefix))
        node_bytes.append(int(num_bytes.sum()))
        blocks, sizes = _different(node)
        different.update(zip(blocks.tolist(), sizes.tolist(), strict=True))
        cached_bytes += int(sizes.sum())
        block_bytes += sum(int(each.block_bytes.sum()) for each in node)
        at_once += sum(each.num_at_once for each in node)
        buffer_bytes = max(buffer_bytes, *(each.buffer_bytes for each in node))
    return Load(
        moment=moment,
        block_bytes=block_bytes,
        different_bytes=sum(different.values()),
        cached_bytes=cached_bytes,
        at_once=at_once,
        node_requests=tuple(node_requests),
        node_bytes=tuple(node_bytes),
        prefix_requests=dict(zip(names.tolist(), requests.tolist(), strict=True)),
        prefix_bytes=dict(zip(names.tolist(), fetched.tolist(), strict=True)),
        buffer_bytes=buffer_bytes,
    )


def _table(loads: Iterable[Load], seconds: float) -> list[str]:
    columns = (
        "moment",
        "ranks",
        "GET/s",
        "MB/s",
        "a node",
        "MB/s",
        "at once",
        "twice %",
        "with cache %",
        "MB a rank",
    )
    rows = [
        (
            load.moment.name,
            f"{load.moment.world_size:,}",
            f"{sum(load.node_requests) / seconds:,.1f}",
            f"{sum(load.node_bytes) / seconds / 1e6:,.1f}",
            f"{max(load.node_requests) / seconds:,.2f}",
            f"{max(load.node_bytes) / seconds / 1e6:,.2f}",
            f"{load.at_once:,}",
            f"{100 * (1 - load.different_bytes / load.block_bytes):.1f}",
            f"{100 * (1 - load.different_bytes / load.cached_bytes):.1f}",
            f"{load.buffer_bytes / 1e6:,.1f}",
        )
        for load in loads
    ]
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    lines = [
        [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        for row in (columns, *rows)
    ]
    prefixes = [
        f"{load.moment.name}: {name} gets {requests / seconds:,.1f} GET/s,"
        f" {load.prefix_bytes[name] / seconds / 1e6:,.1f} MB/s"
        for load in loads
        for name, requests in load.prefix_requests.items()
        if requests
    ]
    return ["  ".join(line) for line in lines] + ["", *prefixes]


def _advice(loads: Iterable[Load], num_lanes: int, seconds: float) -> list[str]:
    """What stands against the store's limit, and what layout reads blocks again and again."""
    most = max(loads, key=lambda load: max(load.prefix_requests.values()))
    rate = max(most.prefix_requests.values()) / seconds
    whole = max(sum(load.node_requests) for load in loads) / seconds
    others = (
        f"{100 * whole / limit:.1f} % of the {limit:,} of {store}"
        for store, limit in STORE_REQUESTS.items()
    )
    first = max(load.at_once for load in loads)
    pace = ALL_RANKS_PER_SECOND if most.moment.world_size > MOST_FREE_RANKS else PREFIX_REQUESTS
    worst = max(load.block_bytes / load.different_bytes for load in loads)
    cached = max(load.cached_bytes / load.different_bytes for load in loads)
    lines = [
        f"busiest prefix: {rate:,.1f} GET/s, {100 * rate / PREFIX_REQUESTS:.1f} % of S3's {PREFIX_REQUESTS:,};"
        f" the {first:,} requests before a first step take at least {first / pace:.1f} s at {pace:,} a second",
        f"all prefixes: {whole:,.1f} GET/s, {' and '.join(others)}",
        f"blocks are fetched {worst:.2f} times at most, {cached:.2f} times with --cache_dir on every node",
    ]
    if worst > MANY_TIMES and most.moment.world_size > num_lanes:
        lines.append(
            f"{most.moment.world_size:,} ranks share {num_lanes} lanes, so several ranks read the same blocks:"
            " --cache_dir lets each node fetch a block once"
        )
    if cached > MANY_TIMES:
        lines.append(
            f"nodes share lanes, so several fetch the same blocks: a number of nodes that divides {num_lanes} fetches"
            " each block once with --cache_dir"
        )
    return lines


def _steps_of_epoch(passes: KnownPasses, global_batch: int) -> int:
    """Steps of the first dataset's first epoch.

    Raises:
        ValueError: It has not enough instances for a step.
    """
    own = passes.first_pass_instances[0] * sum(passes.weights) // passes.weights[0]
    if own < global_batch:
        raise ValueError(
            f"{passes.mixture[0].dataset.url}: the first pass of train L{passes.seq_len} has"
            f" {passes.first_pass_instances[0]:,} instances, fewer than one step of global_batch {global_batch:,}"
            " takes; lower --global_batch, or plan with a larger dataset"
        )
    return own // global_batch


def _nodes(ranks: Iterable[RankRequests]) -> Iterator[tuple[RankRequests, ...]]:
    ranks = iter(ranks)
    while node := tuple(islice(ranks, NODE_RANKS)):
        yield node


def _different(node: Iterable[RankRequests]) -> tuple[Array, Array]:
    """The different blocks of a node, and their bytes."""
    node = tuple(node)
    numbers, first = np.unique(np.concatenate([each.blocks for each in node]), return_index=True)
    return numbers, np.concatenate([each.block_bytes for each in node])[first]
