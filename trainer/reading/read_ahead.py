"""Which blocks are asked for when, as far ahead as fits into memory (docs/order.md, "Reads")."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from pipeline.shards.block import Array
from pipeline.shards.records import BlockTable, Shard
from trainer.reading.planned import HeldBlocks, Planned, StepQueue, Steps
from trainer.reading.ranged_read import BlockRange
from trainer.reading.read_threads import Read
from trainer.reading.settings import ReadSettings

LOOKAHEAD_STEPS = 512
"""The most steps planned ahead at first, whatever the memory.

The first batch is not to wait for long reads of every lane.
"""

MAX_LOOKAHEAD_STEPS = 8192
"""The most steps planned ahead after some time: small steps need many for long reads."""

PLANNED_INSTANCES = 2**15
"""Steps are planned together up to this size."""

MAX_TABLES = 4096
"""The most block tables kept, of some kB each."""


@dataclass
class ReadCounts:
    """What was asked for of shards, tables apart: blocks again count again, attempts do not."""

    blocks: int = 0
    bytes: int = 0
    requests: int = 0

    def add(self, blocks: BlockRange) -> None:
        """Counts a request for a range of blocks."""
        self.blocks += blocks.stop - blocks.first
        self.bytes += blocks.stop_byte - blocks.start_byte
        self.requests += 1


class Wanted(NamedTuple):
    """A block to be read: its number among all, its shard and its place there."""

    number: int
    shard: int
    block: int


class Asked(Protocol):
    """What is asked for tables and blocks: threads that read, or a count of what they would."""

    def submit(self, read: Read) -> None:
        """Takes a request for blocks."""

    def read_table(self, shard: Shard) -> "Future[BlockTable]":
        """A shard's block table."""


class ReadAhead:
    """Plans steps until their blocks fill buffer_bytes and asks for all new blocks.

    It does so again when half of both are gone. Blocks are asked for in order of need, consecutive
    ones of a shard by one request. Memory is bounded by buffer_bytes or by what `min_steps` steps
    need, whichever is more.

    Attributes:
        blocks: Those that planned steps use.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        steps: Iterator[Steps],
        settings: ReadSettings,
        min_steps: int,
        counts: ReadCounts,
        threads: Asked,
        blocks: HeldBlocks | None = None,
    ) -> None:
        """Takes what `BlockWindow` takes, the threads that read, and where to hold blocks."""
        self.blocks = blocks or HeldBlocks()
        self._counts = counts
        self._shards = shards
        self._steps = steps
        self._settings = settings
        self._min_steps = min_steps
        self._threads = threads
        self._asked_table = lru_cache(maxsize=MAX_TABLES)(
            lambda shard: threads.read_table(shards[shard])
        )
        self._unplanned: Steps | None = None  # taken from steps, but not planned yet
        self._is_exhausted = False
        self._lookahead = LOOKAHEAD_STEPS
        self._planned = StepQueue()
        self._num_taken = 0

    def next_steps(self, min_instances: int) -> Planned | None:
        """The next steps, up to so many instances of those planned together; None at the end."""
        if self._runs_low():
            self._plan_ahead()
        if not self._planned:
            return None
        max_steps = len(self._planned)
        if not self._is_exhausted:
            # The rest is being read meanwhile, and keeps the blocks that it shares with these.
            max_steps = max(1, min(max_steps // 4, max_steps - self._min_steps + 1))
        return self._planned.peek(min_instances, max_steps)

    def take(self, steps: Planned) -> list[int]:
        """Drops the next steps, which are decoded. Returns the slots of blocks no longer used."""
        num_steps = len(steps.bounds) - 1
        self._planned.drop(num_steps)
        self._num_taken += num_steps
        return self.blocks.let_go(steps.number, self._num_taken)

    def _runs_low(self) -> bool:
        if self._is_exhausted:
            return False
        num_planned, num_bytes = len(self._planned), self.blocks.num_bytes
        half_empty = (
            num_planned <= self._lookahead // 2 and num_bytes <= self._settings.buffer_bytes // 2
        )
        return half_empty or num_planned < self._min_steps

    def _is_enough(self, num_planned: Array, num_bytes: Array) -> Array:
        """Whether no more is planned, with so many steps planned and bytes held [S]."""
        enough = (num_planned >= self._lookahead) | (num_bytes >= self._settings.buffer_bytes)
        return enough & (num_planned >= self._min_steps)

    def _plan_ahead(self) -> None:
        new: list[Wanted] = []
        is_enough = False
        while not is_enough:
            steps = self._unplanned or next(self._steps, None)
            if steps is None:
                self._is_exhausted = True
                break
            is_enough, wanted = self._plan(steps)
            new += wanted
        for read in join_blocks(new, self._shards, self._table, self._settings.max_read_bytes):
            self.blocks.expect(read)
            self._counts.add(read.blocks)
            self._threads.submit(read)
        self._lookahead = min(2 * self._lookahead, MAX_LOOKAHEAD_STEPS)

    def _plan(self, steps: Steps) -> tuple[bool, list[Wanted]]:
        """Plans some of the steps, and says whether it is enough, and what to read."""
        most = max(1, int(np.searchsorted(steps.instances, PLANNED_INSTANCES, side="right")) - 1)
        bounds = steps.bounds[: most + 1]
        shard, block = (column[: bounds[-1]] for column in (steps.shard, steps.block))
        numbers = self.blocks.number(self._shards, shard, block)
        rows = self.blocks.unknown(numbers)
        cost_bytes = self._cost_bytes(shard[rows], block[rows])
        num_bytes = np.concatenate([[0], np.cumsum(cost_bytes)])[np.searchsorted(rows, bounds[1:])]
        num_planned = np.arange(1, len(bounds)) + len(self._planned)
        is_enough = self._is_enough(num_planned, self.blocks.num_bytes + num_bytes)
        num_steps = int(np.argmax(is_enough)) + 1 if is_enough.any() else len(bounds) - 1
        now = steps.cut(0, num_steps)
        self._unplanned = steps.cut(num_steps, len(steps.bounds) - 1)
        last_use = np.repeat(self._num_taken + num_planned[:num_steps], np.diff(now.bounds))
        self.blocks.use(numbers[: len(last_use)], last_use)
        self._planned.add(numbers[: len(last_use)], now)
        rows = rows[: np.searchsorted(rows, len(last_use))]
        self.blocks.hold(numbers[rows], cost_bytes[: len(rows)])
        wanted = map(Wanted, *(column[rows].tolist() for column in (numbers, shard, block)))
        return bool(is_enough[num_steps - 1]), list(wanted)

    def _cost_bytes(self, shards: Array, blocks: Array) -> Array:
        """What blocks [B] cost: twice their bytes, as those of a read stay to its last."""
        different, index = np.unique(shards, return_inverse=True)
        for shard in different.tolist():
            self._asked_table(shard)  # of all shards at once: each is a round trip
        cost = np.zeros(len(shards), np.int64)
        for place, shard in enumerate(different.tolist()):
            cost[index == place] = 2 * self._table(shard).size[blocks[index == place]]
        return cost

    def _table(self, shard: int) -> BlockTable:
        return self._asked_table(shard).result()


def join_blocks(
    wanted: Iterable[Wanted],
    shards: Sequence[Shard],
    table_of: Callable[[int], BlockTable],
    max_read_bytes: int,
) -> list[Read]:
    """What reads the blocks.

    One read takes in the next block of its shard while it is not too long.

    Args:
        wanted: Blocks in order of need, none twice.
        shards: Shards by the numbers in `wanted`.
        table_of: The block table of a shard.
        max_read_bytes: The most bytes of a read of more than one block.
    """
    reads: list[Read] = []
    endings: dict[tuple[int, int], Read] = {}
    for number, shard, block in wanted:
        read = endings.pop((shard, block), None)
        if read is None or not _fits(read.blocks, block, max_read_bytes):
            read = Read(BlockRange(shards[shard], table_of(shard), block, block), number, Future())
            reads.append(read)
        read.blocks = read.blocks._replace(stop=block + 1)
        endings[shard, block + 1] = read
    return reads


def _fits(blocks: BlockRange, last: int, max_read_bytes: int) -> bool:
    """Whether a range is not too long with another block at its end."""
    end = blocks.table.offset[last] + blocks.table.size[last]
    return bool(end - blocks.start_byte <= max_read_bytes)
