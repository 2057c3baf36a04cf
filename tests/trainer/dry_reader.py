"""What a rank would ask of a store, without reading a block.

The reader's own planning runs, with a list in the place of its threads. A reader that waits for
blocks takes fewer steps at a time, and then may ask a few steps earlier than is counted here.
"""

from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from pipeline.shards.block import Array
from pipeline.shards.records import BlockTable, Shard
from trainer.order.known import KnownPasses
from trainer.order.source import ShardStore
from trainer.order.state import StreamState
from trainer.reading.fetch import gathered_instances
from trainer.reading.planned import HeldBlocks
from trainer.reading.read_ahead import ReadAhead
from trainer.reading.read_threads import Read
from trainer.reading.settings import ReadSettings
from trainer.stream.rank_steps import RankSteps, StepSizes


@dataclass(frozen=True)
class RankRequests:
    """What one rank asks for, in the order of asking.

    Attributes:
        shards: The shard of each request, [Q] index into the known shards.
        num_bytes: Bytes of each request, [Q].
        blocks: Numbers through all shards of the blocks that they fetch, [B].
        block_bytes: Bytes of each of those blocks, [B].
        num_at_once: Requests before the first step.
        buffer_bytes: The most memory that planned blocks take at one time.
    """

    shards: Array
    num_bytes: Array
    blocks: Array
    block_bytes: Array
    num_at_once: int
    buffer_bytes: int


class DryReader:
    """Counts the requests of one rank after another; each block table is read once for all."""

    def __init__(self, passes: KnownPasses, reading: ReadSettings) -> None:
        """Takes the passes of a finished dataset or mixture, and how ranks read them."""
        self._passes, self._reading = passes, reading
        self._tables = _Tables(passes.store)
        self._blocks = HeldBlocks()  # empty after each rank; to number 5 million takes 60 ms
        self._index = {shard.name: number for number, shard in enumerate(passes.shards)}

    def count(self, begin: StreamState, sizes: StepSizes, num_steps: int) -> RankRequests:
        """What a rank asks for that begins at a state and ends after so many steps."""
        steps = RankSteps(self._passes, begin, sizes, self._reading)
        asked = _Requests(self._tables)
        planned = steps.plan(begin, num_steps)
        shards, least = self._passes.shards, steps.min_steps()
        ahead = ReadAhead(shards, planned, self._reading, least, steps.counts, asked, self._blocks)
        num_at_once = buffer_bytes = 0
        while (now := ahead.next_steps(gathered_instances(self._passes.seq_len))) is not None:
            num_at_once = num_at_once or len(asked.reads)
            buffer_bytes = max(buffer_bytes, ahead.blocks.num_bytes)
            ahead.take(now)
        assert not self._blocks.num_bytes, "a block is held after its last step"
        return self._describe(asked.reads, num_at_once, buffer_bytes)

    def _describe(self, reads: list[Read], num_at_once: int, buffer_bytes: int) -> RankRequests:
        every = [read.blocks for read in reads]
        return RankRequests(
            shards=np.array([self._index[blocks.shard.name] for blocks in every], np.int64),
            num_bytes=np.array(
                [blocks.stop_byte - blocks.start_byte for blocks in every], np.int64
            ),
            blocks=np.concatenate(
                [
                    read.first_number + np.arange(read.blocks.stop - read.blocks.first)
                    for read in reads
                ]
            ),
            block_bytes=np.concatenate(
                [blocks.table.size[blocks.first : blocks.stop] for blocks in every]
            ),
            num_at_once=num_at_once,
            buffer_bytes=buffer_bytes,
        )


class _Tables:
    """Block tables, each read once."""

    def __init__(self, store: ShardStore) -> None:
        self._store = store
        self._known: dict[str, Future[BlockTable]] = {}

    def read(self, shard: Shard) -> "Future[BlockTable]":
        """A shard's table, which is there."""
        if (found := self._known.get(shard.name)) is None:
            found = self._known[shard.name] = Future()
            found.set_result(self._store.blocks(shard))
        return found


class _Requests:
    """Stands in for the threads that read: it keeps what they are asked for."""

    def __init__(self, tables: _Tables) -> None:
        self.reads: list[Read] = []
        self.submit = self.reads.append
        self.read_table = tables.read
