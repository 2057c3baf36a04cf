"""Requests to a store: how often they are made again, and that their answers are complete.

Stores do return short bodies, other bytes or nothing at all without an error, so nothing they
return is believed: the number of bytes is checked against the request, and every block's crc32
against the block table. `trainer.batches.unpack` checks what a block decodes to.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import NamedTuple, TypeVar

from pipeline.shards.block import checksum
from pipeline.shards.manifest import BLOCKS_TABLE
from pipeline.shards.records import BlockTable, Shard
from pipeline.storage.faults import DAMAGE_ATTEMPTS, CutFileError, Pauses, StorageError, is_refusal
from trainer.order.source import ShardStore
from trainer.reading.rate_limit import RateLimit

FIRST_DELAY_SECONDS = 0.25
MAX_DELAY_SECONDS = 15.0
LAST_SECONDS = 5.0
"""An attempt that begins at the end of the budget may take so long all the same."""

Result = TypeVar("Result")


class ShardReadError(ValueError):
    """A shard could not be read in full: a ValueError, as the store or dataset needs mending."""


class DamageError(ValueError):
    """Bytes that are not what the tables say."""


class Attempts:
    """The attempts at one thing."""

    def __init__(
        self,
        what: Callable[[], str],
        timeout_seconds: float,
        budget_seconds: float,
        stop: threading.Event,
        rate_limit: RateLimit | None = None,
    ) -> None:
        """Time runs from here.

        Args:
            what: Names the thing, for messages.
            timeout_seconds: Seconds that each attempt may take.
            budget_seconds: Seconds for all attempts and the pauses.
            stop: No more attempts once it is set.
            rate_limit: Whose turns the attempts take; None where nobody else asks.
        """
        self._what, self._stop, self._rate_limit = what, stop, rate_limit or RateLimit()
        self._timeout_seconds, self._budget_seconds = timeout_seconds, budget_seconds
        self._began = self._asked = self._not_before = time.monotonic()
        self._pauses = Pauses(FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS)
        self._number = self._num_damaged = 0
        self._failure: Exception | None = None

    def seconds_to_wait(self) -> float:
        """Seconds after which to ask again whether the next attempt may begin; 0 where it may now."""
        now = time.monotonic()
        left = self._began + self._budget_seconds - now
        if left <= 0:  # the last attempt takes nobody's turn
            return 0.0
        return min(left, max(0.0, self._not_before - now) or self._rate_limit.take_turn(now))

    def wait(self) -> None:
        """Waits until the next attempt may begin.

        Raises:
            ShardReadError: Nobody wants it any more.
        """
        while seconds := self.seconds_to_wait():
            if self._stop.wait(seconds):
                raise self._given_up() from self._failure

    def begin(self) -> float:
        """The seconds that the next attempt may take."""
        self._number += 1
        self._asked = time.monotonic()
        left = self._budget_seconds - (self._asked - self._began)
        return min(self._timeout_seconds, max(left, LAST_SECONDS))

    def answered(self) -> None:
        """The store answered the attempt."""
        self._rate_limit.answered(self._asked, time.monotonic())

    def failed(self, error: Exception) -> None:
        """Puts off the next attempt: for a random time that grows, and the others with it.

        Raises:
            FileNotFoundError: At once, as time does not mend it.
            ShardReadError: A local file is too short, or the budget is spent, or the bytes were
                wrong DAMAGE_ATTEMPTS times, or they were refused for REFUSAL_SECONDS.
        """
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(
                f"{self._what()}: the file is missing; restore or rebuild the dataset"
            ) from error
        if isinstance(error, CutFileError):
            advice = "the file is cut short; restore it, or rebuild the dataset"
            raise ShardReadError(f"{self._what()}: {error}: {advice}") from error
        now, self._failure = time.monotonic(), error
        is_damage = isinstance(error, DamageError)
        if not is_damage and not is_refusal(error):
            self._rate_limit.failed(self._asked, now)
        pause, left = self._pauses.after(error, now), self._began + self._budget_seconds - now
        self._num_damaged += is_damage
        if self._num_damaged >= DAMAGE_ATTEMPTS or pause <= 0 or left <= 0:
            raise self._given_up() from error
        self._not_before = now + min(pause, left)

    def _given_up(self) -> ShardReadError:
        seconds, cause = time.monotonic() - self._began, str(self._failure) or repr(self._failure)
        return ShardReadError(
            f"{self._what()}: gave up after {self._number} attempts in {seconds:.1f} s: {cause};"
            " check the store, or verify the dataset and restore the file"
        )


def retry(attempt: Callable[[float], Result], attempts: Attempts) -> Result:
    """Calls attempt(seconds allowed) until it returns; raises as `Attempts.failed`."""
    while True:
        attempts.wait()
        try:
            result = attempt(attempts.begin())
        except Exception as error:  # noqa: BLE001 - which of them are final is said there
            attempts.failed(error)
        else:
            attempts.answered()
            return result


def call_within(seconds: float, function: Callable[[], Result]) -> Result:
    """Calls a function in a thread of its own.

    The thread is left behind where it does not return in time.

    Raises:
        TimeoutError: It did not.
    """
    result: Future[Result] = Future()
    threading.Thread(
        target=complete, args=(result, function), daemon=True, name="ranged-read"
    ).start()
    try:
        return result.result(seconds)
    except TimeoutError as error:
        if str(error):  # the function's own
            raise
        raise TimeoutError(f"no answer within {seconds:g} s") from error


def complete(result: "Future[Result]", function: Callable[[], Result]) -> None:
    """Runs a function and gives its result or its exception to whoever waits.

    Nothing is given where that has been called off.
    """
    try:
        found = function()
    except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
        with contextlib.suppress(InvalidStateError):
            result.set_exception(error)
    else:
        with contextlib.suppress(InvalidStateError):
            result.set_result(found)


class BlockRange(NamedTuple):
    """Blocks first to stop - 1 of a shard."""

    shard: Shard
    table: BlockTable
    first: int
    stop: int

    @property
    def start_byte(self) -> int:
        """First byte in the tar file."""
        return int(self.table.offset[self.first])

    @property
    def stop_byte(self) -> int:
        """One past the last byte."""
        return int(self.table.offset[self.stop - 1] + self.table.size[self.stop - 1])


def fetch_blocks(
    dataset: ShardStore, blocks: BlockRange, attempts: Attempts
) -> tuple[bytes, list[memoryview]]:
    """A range's bytes from the store, and those of every block, whose crc32 is checked.

    Args:
        dataset: Where the shard is.
        blocks: Its blocks.
        attempts: The attempts at this range.

    Raises:
        FileNotFoundError: The shard is not there.
        ShardReadError: Its bytes did not come, or are not those of the block table.
    """
    url = dataset.locate(blocks.shard.name)

    def attempt(seconds: float) -> tuple[bytes, list[memoryview]]:
        data = call_within(
            seconds,
            lambda: dataset.read_bytes(blocks.shard.name, blocks.start_byte, blocks.stop_byte),
        )
        return data, split_blocks(data, blocks, url)

    return retry(attempt, attempts)


def describe_range(dataset: ShardStore, blocks: BlockRange) -> str:
    """Where a range is, for messages."""
    places = (
        f"blocks {blocks.first} to {blocks.stop - 1} (bytes {blocks.start_byte}-{blocks.stop_byte})"
    )
    return f"{dataset.locate(blocks.shard.name)}, {places}"


def describe_table(dataset: ShardStore, shard: Shard) -> str:
    """Where a shard's block table is, for messages."""
    return f"{dataset.locate(shard.name)}, its rows of {BLOCKS_TABLE}"


def read_table(dataset: ShardStore, shard: Shard, attempts: Attempts) -> BlockTable:
    """Reads a shard's block table and checks that all its blocks but the last are full.

    Lookup relies on that.

    Raises:
        FileNotFoundError: The file is not there.
        ShardReadError: The table did not come, or is damaged, or does not describe the shard.
    """

    def attempt(seconds: float) -> BlockTable:
        try:
            return call_within(seconds, lambda: dataset.blocks(shard, attempts=1))
        except StorageError:  # of a store that does not answer; a ValueError for people
            raise
        except ValueError as error:
            raise DamageError(str(error)) from error

    return retry(attempt, attempts)


def split_blocks(data: bytes, blocks: BlockRange, url: str) -> list[memoryview]:
    """The bytes of every block of a range, each checked against the block table."""
    table, every = blocks.table, slice(blocks.first, blocks.stop)
    begins, sizes = (table.offset[every] - blocks.start_byte).tolist(), table.size[every].tolist()
    view = memoryview(data)
    bodies = [view[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]
    found, expected = [checksum(body) for body in bodies], table.crc32[every].tolist()
    if found != expected:
        number = next(
            n for n, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other
        )
        where = (
            f"{url}, block {blocks.first + number} at byte {table.offset[blocks.first + number]}"
        )
        raise DamageError(
            f"{where}: crc32 of its {sizes[number]} bytes is {found[number]:08x}, not {expected[number]:08x}"
        )
    return bodies
