"""What a rank would ask of a store, without reading a block: the reader's own planning runs."""

from typing import NamedTuple

from trainer.order.known import KnownPasses
from trainer.order.state import StreamState
from trainer.reading.block_reader import Planner, join_blocks
from trainer.reading.ranged_read import BlockRange
from trainer.reading.settings import Reading
from trainer.stream.rank_steps import RankSteps, StepSizes


class Asked(NamedTuple):
    """What one rank asks for, in the order of asking; blocks by `Steps.keys`."""

    ranges: list[BlockRange]
    blocks: list[int]


class DryReader:
    """Counts the requests of one rank after another; each block table is read once for all."""

    def __init__(self, passes: KnownPasses, reading: Reading) -> None:
        self._passes, self._reading = passes, reading
        self._tables = {}

    def count(self, begin: StreamState, sizes: StepSizes, num_steps: int) -> Asked:
        steps = RankSteps(self._passes, begin, sizes, self._reading)
        shards, half_bytes = self._passes.shards, self._reading.buffer_bytes // 2
        planner = Planner(shards, steps.plan(begin, num_steps), half_bytes, steps.min_steps())
        found, held = Asked([], []), set()
        while (planned := planner.next()) is not None:
            new = [key for key in planned.keys if key not in held]
            for read in join_blocks(new, shards, self._table, self._reading.max_read_bytes):
                found.ranges.append(read.blocks)
                count = read.blocks.stop - read.blocks.first
                found.blocks.extend(range(read.first_key, read.first_key + count))
            held = set(planned.keys)
        return found

    def _table(self, number):
        shard = self._passes.shards[number]
        if shard.name not in self._tables:
            self._tables[shard.name] = self._passes.store.blocks(shard)
        return self._tables[shard.name]
