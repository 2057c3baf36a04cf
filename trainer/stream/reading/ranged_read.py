"""Requests to a store: how often they are made again, and that their answers are complete.

Stores do return short bodies, other bytes or nothing at all without an error: the number of bytes
is checked against the request, and every block's crc32 against the block table.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import NamedTuple, TypeVar

from pipeline.shards.block import checksum
from pipeline.shards.dataset import Dataset
from pipeline.shards.records import BlockTable, Shard
from pipeline.storage.driver_errors import is_refusal
from pipeline.storage.faults import DAMAGE_ATTEMPTS, CutFileError, Pauses, StorageError
from trainer.stream.reading.rate_limit import RateLimit
from trainer.stream.reading.settings import Reading

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
    """The attempts at one thing; time runs from when they are made.

    Attributes:
        what: Names the thing, for messages.
        stop: No more attempts once it is set.
        deadline: When the budget of all attempts and pauses is spent.
    """

    def __init__(
        self,
        what: object,
        settings: Reading,
        stop: threading.Event,
        rate_limit: RateLimit | None = None,
    ) -> None:
        """Attempts that take turns of a rate limit, where anybody else asks the same store."""
        self.what, self.stop, self._settings = what, stop, settings
        self._rate_limit = rate_limit or RateLimit()
        self._began = self._asked = self._not_before = time.monotonic()
        self.deadline = self._began + settings.budget_seconds
        self._pauses = Pauses(FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS)
        self._number = self._num_damaged = self._num_missing = 0
        self._failure: Exception | None = None

    def seconds_to_wait(self) -> float:
        """Seconds after which to ask again whether the next attempt may begin; 0 where it may."""
        left = self.deadline - (now := time.monotonic())
        if left <= 0:  # the last attempt takes nobody's turn
            return 0.0
        return min(left, max(0.0, self._not_before - now) or self._rate_limit.take_turn(now))

    def wait(self) -> None:
        """Waits until the next attempt may begin; a ShardReadError where nobody wants it."""
        while seconds := self.seconds_to_wait():
            if self.stop.wait(seconds):
                raise self._given_up() from self._failure

    def begin(self) -> float:
        """The seconds that the next attempt may take."""
        self._number += 1
        self._asked = time.monotonic()
        return min(self._settings.timeout_seconds, max(self.deadline - self._asked, LAST_SECONDS))

    def answered(self) -> None:
        """The store answered the attempt."""
        self._rate_limit.answered(self._asked, time.monotonic())

    def failed(self, error: Exception) -> None:
        """Puts off the next attempt by a random time that grows; slows other readers down too.

        Raises:
            FileNotFoundError: The store said DAMAGE_ATTEMPTS times that there is no such file.
            ShardReadError: Time or attempts are used up (docs/streaming.md, "Faults").
        """
        is_missing = isinstance(error, FileNotFoundError)
        self._num_missing += is_missing
        if is_missing and self._num_missing >= DAMAGE_ATTEMPTS:
            raise FileNotFoundError(
                f"{self.what}: the file is missing; restore or rebuild the dataset"
            ) from error
        if isinstance(error, CutFileError):
            advice = "the file is cut short; restore it, or rebuild the dataset"
            raise ShardReadError(f"{self.what}: {error}: {advice}") from error
        now, self._failure = time.monotonic(), error
        is_damage = isinstance(error, DamageError)
        if not is_damage and not is_missing and not is_refusal(error):
            self._rate_limit.failed(self._asked, now)
        pause, left = self._pauses.after(error, now), self.deadline - now
        self._num_damaged += is_damage
        if self._num_damaged >= DAMAGE_ATTEMPTS or pause <= 0 or left <= 0:
            raise self._given_up() from error
        self._not_before = now + min(pause, left)

    def _given_up(self) -> ShardReadError:
        seconds, cause = time.monotonic() - self._began, str(self._failure) or repr(self._failure)
        return ShardReadError(
            f"{self.what}: gave up after {self._number} attempts in {seconds:.1f} s: {cause};"
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
    """Calls a function in a thread, which is left behind, by a TimeoutError, after some seconds."""
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
    """Gives a function's result or exception to whoever waits and has not called it off."""
    try:
        found = function()
    except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
        with contextlib.suppress(InvalidStateError):
            result.set_exception(error)
    else:
        with contextlib.suppress(InvalidStateError):
            result.set_result(found)


class BlockRange(NamedTuple):
    """Blocks first to stop - 1 of a shard; `str` says where they are."""

    dataset: Dataset
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

    def __str__(self) -> str:
        return (
            f"{self.dataset.locate(self.shard.name)}, blocks {self.first} to {self.stop - 1}"
            f" (bytes {self.start_byte}-{self.stop_byte})"
        )

    def locate(self, block: int) -> str:
        """Where a block is, for messages."""
        url = self.dataset.locate(self.shard.name)
        return f"{url}, block {block} at byte {self.table.offset[block]}"


def fetch_blocks(blocks: BlockRange, attempts: Attempts) -> tuple[bytes, list[memoryview]]:
    """A range's bytes from the store, and those of every block, whose crc32 is checked.

    Raises:
        FileNotFoundError: The shard is not there.
        ShardReadError: Its bytes did not come, or are not those of the block table.
    """
    span = blocks.shard.name, blocks.start_byte, blocks.stop_byte

    def attempt(seconds: float) -> tuple[bytes, list[memoryview]]:
        data = call_within(seconds, lambda: blocks.dataset.read_bytes(*span))
        return data, split_blocks(data, blocks)

    return retry(attempt, attempts)


def read_table(dataset: Dataset, shard: Shard, attempts: Attempts) -> BlockTable:
    """Reads a shard's block table, of whose blocks all but the last are full; raises the same."""

    def attempt(seconds: float) -> BlockTable:
        try:
            return call_within(seconds, lambda: dataset.blocks(shard, attempts=1))
        except StorageError:  # of a store that does not answer; a ValueError for people
            raise
        except ValueError as error:
            raise DamageError(str(error)) from error

    return retry(attempt, attempts)


def split_blocks(data: bytes, blocks: BlockRange) -> list[memoryview]:
    """The bytes of every block of a range, each checked against the block table."""
    table, view, bodies = blocks.table, memoryview(data), []
    for block in range(blocks.first, blocks.stop):
        begin = int(table.offset[block]) - blocks.start_byte
        body = view[begin : begin + int(table.size[block])]
        if (found := checksum(body)) != (expected := int(table.crc32[block])):
            raise DamageError(
                f"{blocks.locate(block)}: crc32 of its {table.size[block]} bytes is {found:08x},"
                f" not {expected:08x}"
            )
        bodies.append(body)
    return bodies
