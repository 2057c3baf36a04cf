"""Gives the compiled unpacking of stored blocks sound and damaged ones, under gcc's sanitizers, in two threads at once.

    python -m scripts.soak.fuzz_blocks --seconds 240 --output
    scripts/soak/results/DATE-fuzz-blocks.json

A block is damaged behind its crc32. It must be taken and be what the Python path makes of it, or be
left to that path, which says what is wrong, or reads it; all other slots of the arena keep what
they hold. What the product never gives (places, sizes and arrays that do not fit) must only stay
inside memory.

zstd does not notice all damage to a frame without a checksum, and what it makes of such a frame
depends on its version: where the two paths differ, the Python path is asked again with the library
of the compiled one, and must then agree.
"""

import contextlib
import ctypes
import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import zstandard

from pipeline.shards import arrow_stream
from pipeline.shards.block import Block, block_instances, encode_block
from pipeline.shards.records import BlockTable, Shard
from pipeline.shards.seal import NOTHING
from scripts.soak.damaged_blocks import NUMBERS, Draws, Stored, as_it_is, template
from scripts.soak.sanitized import run_sanitized
from trainer.stream import arena
from trainer.stream.arena import check_block, read_batch_checked

SHAPES: tuple[tuple[int, Any], ...] = (
    (128, np.uint16), (512, np.uint16), (128, np.uint32), (512, np.uint32), (8192, np.uint16)
)  # fmt: skip
NUM_THREADS = 2
MISUSED_SHARE = 0.3
RENEWED_SHARE = 0.1
PLACE = "fuzzed"


class Target:
    """An arena of eight slots, three of them taken, for blocks of one shape."""

    def __init__(self, draws: Draws, seq_len: int, dtype: Any) -> None:
        self._draws, self._seq_len, self._dtype = draws, seq_len, np.dtype(dtype)
        self._shard = Shard("train", seq_len, 0, PLACE, 0, "", "", "", 0, 0, 0, 0, 0, 0, NOTHING)
        self._arena = arena.Arena(block_instances(seq_len))
        for slot in [self._arena.put(_all_masked(seq_len, dtype)) for _ in range(5)]:
            self._arena.free(slot)  # which leaves room for any block
        blocks = [draws.block(seq_len, dtype, masked) for masked in ("all", "some", "no")]
        slots = [self._arena.put(block) for block in blocks]
        stops = [block.num_instances for block in blocks]
        self._others = np.array(slots), np.zeros(3, np.int64), np.array(stops)
        self._held = self._arena.gather(*self._others)
        self._renew()

    def compare(self) -> str:
        """Unpacks a block on both paths, and says which of them read it.

        Raises:
            AssertionError: They differ, or another slot has changed.
        """
        if self._draws.rng.random() < RENEWED_SHARE:
            self._renew()
        kind, stored = self._draws.damaged(self._stored)
        slot = self._put(stored)
        try:
            outcome = self._judge(kind, stored, slot)
        except AssertionError:
            if kind == "sound":
                raise
            with _zstd_of_compiled_path():
                outcome = f"{self._judge(kind, stored, slot)}, if by the same zstd"
        # Without masked positions buffers are left out.
        assert kind != "sound" or outcome == "taken" or not self._block.num_masked, (
            f"a sound block was {outcome}"
        )
        _expect_equal(f"{kind}: another slot", self._arena.gather(*self._others), self._held)
        return f"{kind}: {outcome}"

    def _put(self, stored: Stored) -> int | None:
        """The slot that the block is put into; alone, or together with a sound one before it, whose slot is let go."""
        alone, together = [stored], [self._stored, stored]
        if not self._block.num_masked:  # whose buffers are left out, so that Python reads it
            together = alone
        given = self._draws.one([alone, together])
        counts = np.array([each.counts for each in given], np.int64)
        bodies = [memoryview(each.data) for each in given]
        slots = self._arena.put_stored(bodies, counts, self._seq_len, self._vocab_size)
        for slot in slots[: len(given) - 1]:
            self._arena.free(slot)
        assert len(slots) >= len(given) - 1, "a sound block was refused"
        return slots[-1] if len(slots) == len(given) else None

    def _renew(self) -> None:
        self._block = self._draws.block(self._seq_len, self._dtype)
        encode = self._draws.one([encode_block, _encode_as_it_is])
        ids = np.concatenate([self._block.input_ids, self._block.masked_lm_ids])
        self._vocab_size = int(ids.max()) + 1
        self._stored = Stored(
            encode(self._block), (self._block.num_instances, self._block.num_tokens)
        )

    def _judge(self, kind: str, stored: Stored, slot: int | None) -> str:
        try:
            expected, problem = self._read(stored), PLACE
        except ValueError as error:
            expected, problem = None, str(error)
        assert problem.startswith(PLACE), f"no place in: {problem}"
        if expected is None:
            assert slot is None, f"{kind}: taken, but: {problem}"
            return "refused by both"
        self._expect(kind, expected, slot)
        return "left to Python, which reads it" if slot is None else "taken"

    def _read(self, stored: Stored) -> Block:
        instances, tokens = (np.array([count], np.int64) for count in stored.counts)
        nothing = np.zeros(1, np.int64)
        table = BlockTable(nothing, nothing, instances, tokens, np.zeros(1, np.uint32))
        batch = read_batch_checked(memoryview(stored.data), table, 0, PLACE)
        return check_block(batch, self._shard, self._vocab_size, PLACE)

    def _expect(self, kind: str, expected: Block, slot: int | None) -> None:
        """The slot, or else the one that the block is now put into, holds what is expected."""
        if slot is None and expected.input_ids.dtype != self._dtype:
            return
        slot = self._arena.put(expected) if slot is None else slot
        found = self._arena.gather(
            np.array([slot]), np.array([0]), np.array([expected.num_instances])
        )
        _expect_equal(kind, found, expected)
        self._arena.free(slot)


class _Zstd:
    """The library of the compiled path, as the Python path calls its own."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libzstd.so.1")
        self._library.ZSTD_decompress.restype = ctypes.c_size_t

    def decompress(self, frame: memoryview, allow_extra_data: bool) -> bytes:
        """The content of a frame."""
        assert not allow_extra_data
        room = ctypes.create_string_buffer(max(1, zstandard.frame_content_size(frame)))
        size = self._library.ZSTD_decompress(room, len(room), bytes(frame), len(frame))
        if size > len(room):
            raise zstandard.ZstdError(f"ZSTD_decompress gives {size}")
        return bytes(room.raw[:size])


@contextlib.contextmanager
def _zstd_of_compiled_path() -> Iterator[None]:
    """The Python path uses it, in this thread."""
    own = arrow_stream._decompressors.zstd
    arrow_stream._decompressors.zstd = _Zstd()  # type: ignore[assignment]
    try:
        yield
    finally:
        arrow_stream._decompressors.zstd = own


def misuse(module: Any, draws: Draws) -> str:
    """Calls with numbers and arrays some of which do not fit."""
    seq_len, dtype = draws.one(SHAPES)
    block = draws.block(seq_len, dtype, "some")
    data, (head, places) = draws.one([encode_block, _encode_as_it_is])(block), template(dtype)
    slots, stride, width = draws.below(1, 4), block_instances(seq_len) + 1, np.dtype(dtype).itemsize
    slot = draws.below(0, slots)
    numbers = [*places, slots, width, seq_len, int(np.iinfo(dtype).max), stride]
    numbers += [slot, block.num_instances, block.num_tokens]
    for _ in range(draws.below(0, 3)):
        place = draws.below(0, len(numbers))
        near = [(numbers[place] + change) % 2**62 for change in (1, -1, numbers[place])]
        numbers[place] = draws.one([*NUMBERS, *near, draws.one(numbers), len(head), len(data)])
    capacity = slots * block.num_tokens
    lists = [
        np.zeros(slots * stride + 1, np.int64) if n % 2 == 0 else np.zeros(capacity, dtype)
        for n in range(6)
    ]
    flat = [np.zeros(slots * stride, kind) for kind in (np.uint16, np.bool_, np.uint64, np.uint64)]
    cut = [
        draws.one([*19 * [array], array[: draws.below(0, len(array) + 1)]])
        for array in (*lists, *flat)
    ]
    own = data[: len(head)]  # any places are like this one
    head = draws.one([head, own, own, data[: draws.below(0, len(data))]])
    data = draws.one([*9 * [data], data[: draws.below(0, len(data))]])
    blocks = draws.below(1, 4) * [data]
    counts = np.array([numbers[9:] for _ in blocks], np.int64)
    counts[1:, 0] = [draws.below(0, slots) for _ in blocks[1:]]
    places, sizes = tuple(numbers[:4]), tuple(numbers[4:9])
    taken = module.put_stored(blocks, head, places, sizes, counts, tuple(cut[:6]), tuple(cut[6:]))
    return f"misuse: {'taken' if taken else 'refused'}"


def fuzz(modules: Mapping[str, Any], seconds: float, seed: int) -> dict[str, int]:
    """Calls, by what was done to the block and what became of it.

    Raises:
        AssertionError: The two paths differ.
    """
    arena.COMPILED = modules["trainer.stream._blocks"]
    assert arena.COMPILED.IS_USABLE, "no zstd library: apt-get install libzstd1"
    arena.IS_USABLE = True
    end = time.monotonic() + seconds

    def run(number: int) -> Counter[str]:
        draws, calls = Draws(NUM_THREADS * seed + number), Counter[str]()
        targets = [Target(draws, *shape) for shape in SHAPES]
        while time.monotonic() < end:
            if draws.rng.random() < MISUSED_SHARE:
                calls[misuse(arena.COMPILED, draws)] += 1
            else:
                calls[draws.one(targets).compare()] += 1
        return calls

    with ThreadPoolExecutor(NUM_THREADS) as threads:
        total = sum(threads.map(run, range(NUM_THREADS)), Counter[str]())
    return dict(sorted(total.items()))


def _encode_as_it_is(block: Block) -> bytes:
    """Copied by the module itself, whose every access the sanitizers see."""
    return as_it_is(encode_block(block))


def _all_masked(seq_len: int, dtype: Any) -> Block:
    """The largest block."""
    rows = block_instances(seq_len)
    offsets, tokens = np.arange(rows + 1, dtype=np.int32) * seq_len, np.zeros(rows * seq_len, dtype)
    zeros, ids = np.zeros(rows, np.uint64), tokens.astype(np.uint16)
    return Block(
        tokens,
        offsets,
        zeros.astype(np.uint16),
        ids,
        tokens,
        offsets,
        zeros.astype(np.bool_),
        zeros,
        zeros,
    )


def _expect_equal(what: str, found: Block, expected: Block) -> None:
    for field in dataclasses.fields(Block):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        same = one.dtype == other.dtype and np.array_equal(one, other)
        assert same, f"{what}: {field.name} differs"


if __name__ == "__main__":
    sys.exit(run_sanitized(__file__, __doc__ or "", ["trainer.stream._blocks"], fuzz))
