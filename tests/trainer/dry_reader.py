"""What a rank would ask of a store, without reading a block: the reader's own planning runs."""

from typing import NamedTuple

from trainer.order.known import KnownPasses
from trainer.order.state import StreamState
from trainer.reading.block_reader import BlockReader, join_blocks
from trainer.reading.ranged_read import BlockRange
from trainer.reading.settings import Reading
from trainer.stream import step
from trainer.stream.step import StepSizes


class Asked(NamedTuple):
    """What one rank asks for, in the order of asking; blocks by `PlannedStep.keys`."""

    ranges: list[BlockRange]
    blocks: list[int]


class DryReader(BlockReader):
    """Counts the requests of one rank after another; each block table is read once for all."""

    def __init__(self, passes: KnownPasses, reading: Reading) -> None:
        super().__init__(passes.shards, reading)
        self._passes, self._found = passes, {}
        self.close()

    def count(self, begin: StreamState, sizes: StepSizes, num_steps: int) -> Asked:
        self._asked, self._held = Asked([], []), {}
        steps = step._Steps(self._passes, begin, sizes, 0, num_steps)
        for _ in self.steps(steps.plan(), steps.min_steps()):
            pass
        return self._asked

    def ask(self, keys):
        new = [key for key in keys if key not in self._held]
        most = self._settings.max_read_bytes
        for first, blocks in join_blocks(new, self._shards, self._table, most):
            self._asked.ranges.append(blocks)
            self._asked.blocks.extend(range(first, first + blocks.stop - blocks.first))
            self._held |= dict.fromkeys(range(first, first + blocks.stop - blocks.first))

    def _have(self, _keys):
        return True

    def _gather(self, _steps):
        return None

    def _table(self, number):
        dataset, shard = self._shards[number]
        if shard.name not in self._found:
            self._found[shard.name] = dataset.blocks(shard)
        return self._found[shard.name]
