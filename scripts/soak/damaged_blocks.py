"""Stored blocks, sound and damaged behind their crc32, for scripts/soak/fuzz_blocks.py.

Damage is done to values before they are compressed and to frames of zstd, and then to the bytes of
the whole: to any of them, to the numbers of 8 bytes that say what lies where, and to the end.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard

from pipeline.shards.arrow_stream import END_OF_STREAM, find_messages, read_record_batch
from pipeline.shards.arrow_writer import template_of
from pipeline.shards.block import Block, block_instances, block_schema

NUM_BUFFERS = 10
PLAIN = struct.pack("<q", -1)
"""Before a buffer that is stored as it is."""
_MAGIC, _LEGACY_MAGIC, _SKIPPABLE_MAGIC = 0xFD2FB528, 0xFD2FB527, 0x184D2A50
_HUGE = [
    0,
    1,
    7,
    8,
    2**16,
    2**19 - 1,
    2**19,
    2**19 + 1,
    2**31 - 1,
    2**31,
    2**32,
    2**62,
    2**63 - 8,
    2**63 - 1,
]
NUMBERS = [*_HUGE, -1, -2, -8, -(2**31), -(2**63) + 7, -(2**63)]


@dataclass(frozen=True)
class Stored:
    """A block as stored, and the instances and tokens that a block table says it has."""

    data: bytes
    counts: tuple[int, int]


class Draws:
    """Blocks and damage to them, from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def below(self, low: int, high: int) -> int:
        """An integer in [low, high)."""
        return int(self.rng.integers(low, high))

    def one(self, choices: Sequence[Any]) -> Any:
        """One of several."""
        return choices[self.below(0, len(choices))]

    def block(self, seq_len: int, dtype: Any, masked: str | None = None) -> Block:
        """A block of a shard of some seq_len, with "no", "some" or "all" of its tokens masked."""
        full, masked = (
            block_instances(seq_len),
            masked or self.one(["no", "some", "some", "some", "all"]),
        )
        num_rows = self.one([1, full, *4 * [self.below(1, min(full, 20) + 1)]])
        lengths = self.rng.integers(5, self.one([6, 41, 41, seq_len + 1]), num_rows)
        counts = {"no": 0 * lengths, "some": 1 + lengths * 15 // 100, "all": lengths}[masked]
        tokens, num_masked = int(lengths.sum()), int(counts.sum())
        vocab_size = self.one([2, 30_000, np.iinfo(dtype).max])
        return Block(
            input_ids=self.rng.integers(0, vocab_size, tokens, dtype),
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
            segment_a_length=self.one([lengths - 1, self.rng.integers(1, lengths)]).astype(
                np.uint16
            ),
            masked_lm_positions=self.rng.integers(0, np.repeat(lengths, counts)).astype(np.uint16),
            masked_lm_ids=self.rng.integers(0, vocab_size, num_masked, dtype),
            masked_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            is_random_next=self.rng.random(len(lengths)) < 0.5,
            document_a=self.rng.integers(0, 2**64, len(lengths), np.uint64),
            document_b=np.arange(len(lengths), dtype=np.uint64),
        )

    def damaged(self, block: Stored) -> tuple[str, Stored]:
        """A block, and what was done to it: "sound" if nothing was."""
        data, counts = block.data, block.counts
        done: list[str] = []
        inner: list[tuple[str, Callable[[bytes], bytes]]] = [
            ("values", self._values),
            ("frames", self._frames),
        ]
        outer = [("bytes", self._bytes), ("numbers", self._numbers), ("ends", self._ends)]
        for kinds, chance in ((inner, 0.6), (outer, 0.4)):
            if self.rng.random() < chance:
                name, change = self.one(kinds)
                done, data = [*done, name], change(data)
        if self.rng.random() < 0.05:
            wrong = self.one([counts[0] + self.below(-2, 3), self.one(NUMBERS)])
            done, counts = [*done, "counts"], self.one([(wrong, counts[1]), (counts[0], wrong)])
        return (done or ["sound"])[0] if len(done) < 2 else "several", Stored(data, counts)

    def _bytes(self, data: bytes) -> bytes:
        changed, end = bytearray(data), self.one([len(data), find_messages(data).body])
        for _ in range(self.below(1, 9)):
            changed[self.below(0, end)] ^= 1 << self.below(0, 8)
        return bytes(changed)

    def _numbers(self, data: bytes) -> bytes:
        """Of the messages, and what buffers say they become."""
        at, changed = find_messages(data), bytearray(data)
        starts = struct.unpack_from("<40q", data, at.places)[2::4]
        places = [at.body_bytes, at.num_rows, *(at.nodes + 8 * n for n in range(20))]
        buffers = [at.places + 8 * n for n in range(40) if n % 4 > 1]  # the others are of validity
        places += (
            [at.places + 8 * n for n in range(40)]
            + 2 * buffers
            + 2 * [at.body + start for start in starts]
        )
        for _ in range(self.below(1, 3)):
            place, other = self.one(places), self.one(places)
            old, copied = (struct.unpack_from("<q", changed, each)[0] for each in (place, other))
            near = old + self.below(-9, 10)
            struct.pack_into(
                "<q", changed, place, self.one([self.one(NUMBERS), near % 2**62, copied, len(data)])
            )
        return bytes(changed)

    def _ends(self, data: bytes) -> bytes:
        size = self.one(
            [self.below(0, len(data)), len(data) - self.below(1, 20), find_messages(data).body]
        )
        return bytes(
            self.one([data[:size], data[:size], data + bytes(self.below(1, 20)), data + data])
        )

    def _values(self, data: bytes) -> bytes:
        """Of one buffer, or how long columns say they are."""
        batch = read_record_batch(data)
        lengths, number = list(batch.lengths), self.below(0, NUM_BUFFERS)
        values = np.frombuffer(
            batch.buffers[number], _dtype_of(number, batch.buffers, lengths)
        ).copy()
        kind = self.below(0, 6)
        if kind == 0:
            lengths[number] += self.one([-1, 1, 5])
        elif kind == 1:
            values = self.one([values[:-1], values[:0], np.concatenate([values, values])])
        elif len(values):
            limits, place = np.iinfo(values.dtype), self.below(0, len(values))
            near = int(values[place]) + self.below(-2, 3)
            values[place] = self.one(
                [limits.min, limits.max, 0, 1, min(max(near, limits.min), limits.max)]
            )
        stored = _stored(data)
        for each in (
            {number, 8 - number} if number in (3, 5) and self.rng.random() < 0.7 else {number}
        ):
            stored[each] = _pack(values.tobytes())
        return _lay_out(data, stored, lengths)

    def _frames(self, data: bytes) -> bytes:
        """Of one or two buffers; or many are stored as they are."""
        buffers = read_record_batch(data).buffers
        if self.rng.random() < 0.3:
            pairs = zip(buffers, _stored(data), strict=True)
            return _lay_out(
                data, [self.one([PLAIN + buffer, PLAIN + buffer, own]) for buffer, own in pairs]
            )
        stored = _stored(data)
        for _ in range(self.below(1, 3)):
            number = self.below(0, NUM_BUFFERS)
            length, frame = self._frame(buffers[number])
            if self.rng.random() < 0.2:
                length = self.one([*NUMBERS, self.below(0, 2**18)])
            whole = struct.pack("<q", length) + frame
            stored[number] = self.one(
                [*12 * [whole], PLAIN + frame, self.one(stored), b"", bytes(7)]
            )
        return _lay_out(data, stored)

    def _frame(self, values: bytes) -> tuple[int, bytes]:
        """A frame of these values, or nearly so, and what it becomes."""
        size, more = len(values), values + bytes(self.one([1, 8, 2**17, 2**19 - len(values)]))
        length = (
            self.one([size + self.below(-9, 10), self.one(NUMBERS), self.below(0, 2**18)]) % 2**63
        )
        sound = zstandard.ZstdCompressor(level=1).compress(values)
        sizes = [self.below(0, 2**17) for _ in range(self.below(1, 9))]
        skippable = struct.pack("<II", _SKIPPABLE_MAGIC + self.below(0, 16), size) + values
        frames: list[Callable[[], tuple[int, bytes]]] = [
            lambda: (
                size,
                zstandard.ZstdCompressor(level=self.below(-5, 12), write_checksum=True).compress(
                    values
                ),
            ),
            lambda: (len(more), zstandard.ZstdCompressor(level=1).compress(more)),
            lambda: (max(0, size - 1), zstandard.ZstdCompressor(level=1).compress(values[:-1])),
            lambda: (size, zstandard.ZstdCompressor(write_content_size=False).compress(values)),
            lambda: (length, _claim(sound, length, self.one([0, 0, 0, 1, 2, 3]))),
            lambda: (size, sound[: self.below(0, len(sound))]),
            lambda: (
                size,
                sound
                + self.one([sound, b"\0", skippable, struct.pack("<II", _SKIPPABLE_MAGIC, 0)]),
            ),
            lambda: (size, sound[: len(sound) // 2] + self.rng.bytes(len(sound) // 2)),
            lambda: (self.one([0, size]), skippable),
            lambda: (size, _legacy(values[:60_000])),
            lambda: (self.one([size, length]), _repeated(self.one([size, length]), sizes)),
            lambda: (
                size,
                _repeated(size, [each for each in (2**17 - 1, size % 2**17) if each <= size]),
            ),
        ]
        found: tuple[int, bytes] = self.one(frames)()
        return found


def _dtype_of(number: int, buffers: Sequence[bytes], lengths: Sequence[int]) -> Any:
    token = np.dtype(f"u{len(buffers[1]) // max(1, lengths[1]) or 2}")
    return (
        np.int32,
        token,
        np.uint16,
        np.int32,
        np.uint16,
        np.int32,
        token,
        np.uint8,
        np.uint64,
        np.uint64,
    )[number]


def _pack(values: bytes) -> bytes:
    return (
        struct.pack("<q", len(values)) + zstandard.ZstdCompressor(level=1).compress(values)
        if values
        else b""
    )


def _stored(data: bytes) -> list[bytes]:
    """The buffers of a sound block, as they are stored."""
    at = find_messages(data)
    places = struct.unpack_from("<40q", data, at.places)
    pairs = zip(places[2::4], places[3::4], strict=True)
    return [data[at.body + start : at.body + start + size] for start, size in pairs]


def as_it_is(data: bytes) -> bytes:
    """The block without any frames."""
    return _lay_out(data, [PLAIN + buffer for buffer in read_record_batch(data).buffers])


def _lay_out(data: bytes, stored: Sequence[bytes], lengths: Sequence[int] | None = None) -> bytes:
    """The block with other stored buffers, and perhaps other lengths of columns."""
    at, places = find_messages(data), [0]
    for each in stored:
        places.append(places[-1] + len(each) + -len(each) % 8)
    head = bytearray(data[: at.body])
    struct.pack_into("<q", head, at.body_bytes, places[-1])
    for number, each in enumerate(stored):
        struct.pack_into(
            "<4q", head, at.places + 32 * number, places[number], 0, places[number], len(each)
        )
    for number, length in enumerate(lengths or ()):
        struct.pack_into("<q", head, at.nodes + 16 * number, length)
    return bytes(head) + b"".join(each + bytes(-len(each) % 8) for each in stored) + END_OF_STREAM


def _claim(frame: bytes, length: int, dictionary: int) -> bytes:
    """A frame under a header that says another length, and perhaps a dictionary."""
    parameters = zstandard.get_frame_parameters(frame)
    header = zstandard.frame_header_size(frame)
    flags = 0xE0 | 4 * bool(parameters.has_checksum) | dictionary
    named = bytes((0, 1, 2, 4)[dictionary])
    return struct.pack("<IB", _MAGIC, flags) + named + struct.pack("<Q", length) + frame[header:]


def _repeated(length: int, sizes: Sequence[int]) -> bytes:
    """A frame that says a length and holds blocks of one byte many times."""
    blocks = b"".join(
        struct.pack("<I", size << 3 | 2 | (number == len(sizes) - 1))[:3] + b"\1"
        for number, size in enumerate(sizes)
    )
    return struct.pack("<IBQ", _MAGIC, 0xE0, length) + blocks


def _legacy(values: bytes) -> bytes:
    """A frame as zstd 0.7 wrote it: of values as they are."""
    size = struct.pack(">I", len(values))[1:]
    raw = bytes([0x40 | size[0]]) + size[1:] + values
    return struct.pack("<IBI", _LEGACY_MAGIC, 0xA0, len(values)) + raw + bytes([0xC0, 0, 0])


def template(dtype: Any) -> tuple[bytes, tuple[int, int, int, int]]:
    """The messages of a block before its body, and where their numbers are."""
    data, at = template_of(block_schema(dtype))
    return data[: at.body], (at.body_bytes, at.num_rows, at.nodes, at.places)
