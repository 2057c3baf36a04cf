"""Reads ranges of shards from a store: repeats requests, and checks that answers are complete.

Stores do return short bodies, wrong bytes or nothing at all without an error. So the number of
bytes is checked against the request, and every block's crc32 against the block table.
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
"""Seconds that an attempt may take at least, even if it begins at the end of the budget."""

Result = TypeVar("Result")


class ShardReadError(ValueError):
    """A shard could not be read in full.

    It is a ValueError because the user has to mend the store or the dataset.
    """


class DamageError(ValueError):
    """The bytes that were read differ from those that the dataset's tables describe."""


class Attempts:
    """The attempts at one request, and the time that they may take together.

    The time begins when this object is made. `retry` shows the order of the calls: `wait`, `begin`,
    and then `answered` or `failed`.

    Attributes:
        what: Names what is read, in messages.
        stop: Ends the attempts once it is set.
        deadline: When the time of all attempts and pauses together is spent, by `time.monotonic`.
    """

    def __init__(
        self,
        what: object,
        settings: Reading,
        stop: threading.Event,
        rate_limit: RateLimit | None = None,
    ) -> None:
        """Starts the clock.

        Args:
            what: Names what is read, in messages; its `str` is used.
            settings: How long one attempt and all of them may take.
            stop: Ends the attempts once it is set.
            rate_limit: Says when this process may make its next request; None lets it make them at
                any time.
        """
        self.what = what
        self.stop = stop
        self._settings = settings
        self._rate_limit = rate_limit or RateLimit()
        now = time.monotonic()
        self._began = now
        self._asked = now  # when the last attempt began
        self._not_before = now  # when the next attempt may begin
        self.deadline = now + settings.budget_seconds
        self._pauses = Pauses(FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS)
        self._number = 0
        self._num_damaged = 0
        self._num_missing = 0
        self._failure: Exception | None = None

    def seconds_to_wait(self) -> float:
        """Returns 0 if the next attempt may begin, or the seconds after which to ask again.

        With a result of 0 a turn of the rate limit has been taken, so the caller should begin at
        once.
        """
        now = time.monotonic()
        seconds_left = self.deadline - now
        if seconds_left <= 0:  # the last attempt does not wait for a turn
            return 0.0
        pause = max(0.0, self._not_before - now)
        return min(seconds_left, pause or self._rate_limit.take_turn(now))

    def wait(self) -> None:
        """Waits until the next attempt may begin.

        Raises:
            ShardReadError: `stop` was set meanwhile.
        """
        while seconds := self.seconds_to_wait():
            if self.stop.wait(seconds):
                raise self._given_up() from self._failure

    def begin(self) -> float:
        """Notes that the next attempt begins now, and returns the seconds that it may take.

        These are the settings' `timeout_seconds`, or less if the time for all attempts ends before.
        """
        self._number += 1
        self._asked = time.monotonic()
        return min(self._settings.timeout_seconds, max(self.deadline - self._asked, LAST_SECONDS))

    def answered(self) -> None:
        """Notes that the store answered the attempt, so that the rate limit may rise."""
        self._rate_limit.answered(self._asked, time.monotonic())

    def failed(self, error: Exception) -> None:
        """Notes that the attempt failed, and sets a pause before the next one.

        Pauses are random and grow. A fault of the store slows all readers of this machine down.

        Args:
            error: The error of the attempt.

        Raises:
            FileNotFoundError: The store said DAMAGE_ATTEMPTS times that there is no such file.
            ShardReadError: Time or attempts are used up (docs/streaming.md, "Faults"), or the file
                is cut short.
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
        now = time.monotonic()
        self._failure = error
        is_damage = isinstance(error, DamageError)
        if not is_damage and not is_missing and not is_refusal(error):
            self._rate_limit.failed(self._asked, now)
        pause = self._pauses.after(error, now)
        seconds_left = self.deadline - now
        self._num_damaged += is_damage
        if self._num_damaged >= DAMAGE_ATTEMPTS or pause <= 0 or seconds_left <= 0:
            raise self._given_up() from error
        self._not_before = now + min(pause, seconds_left)

    def _given_up(self) -> ShardReadError:
        """Returns the error that ends the attempts; it names the last failure."""
        seconds = time.monotonic() - self._began
        cause = str(self._failure) or repr(self._failure)
        return ShardReadError(
            f"{self.what}: gave up after {self._number} attempts in {seconds:.1f} s: {cause};"
            " check the store, or verify the dataset and restore the file"
        )


def retry(attempt: Callable[[float], Result], attempts: Attempts) -> Result:
    """Calls a function again and again until it returns, and returns its result.

    Args:
        attempt: Makes one attempt; takes the seconds that it is allowed.
        attempts: Counts the attempts and says when the next one may begin.

    Raises:
        FileNotFoundError: The store said several times that there is no such file.
        ShardReadError: Time or attempts are used up, or `attempts.stop` is set.
    """
    while True:
        attempts.wait()
        try:
            result = attempt(attempts.begin())
        except Exception as error:  # noqa: BLE001 - `failed` raises those that are final
            attempts.failed(error)
        else:
            attempts.answered()
            return result


def call_within(seconds: float, function: Callable[[], Result]) -> Result:
    """Returns the result of a function that is called in a thread, if it comes in time.

    Args:
        seconds: How long to wait. After that the thread is left behind.
        function: What to call; its exception is raised here.

    Raises:
        TimeoutError: There was no result in time.
    """
    result: Future[Result] = Future()
    threading.Thread(
        target=complete, args=(result, function), daemon=True, name="ranged-read"
    ).start()
    try:
        return result.result(seconds)
    except TimeoutError as error:
        if str(error):  # the function raised it
            raise
        raise TimeoutError(f"no answer within {seconds:g} s") from error


def complete(result: "Future[Result]", function: Callable[[], Result]) -> None:
    """Calls a function and puts its result or its exception into a future.

    If the future was cancelled meanwhile, both are dropped.
    """
    try:
        value = function()
    except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
        with contextlib.suppress(InvalidStateError):
            result.set_exception(error)
    else:
        with contextlib.suppress(InvalidStateError):
            result.set_result(value)


class BlockRange(NamedTuple):
    """Consecutive blocks of a shard; `str` says where they are, for messages.

    Attributes:
        dataset: The dataset of the shard.
        shard: The shard.
        table: The block table of the shard.
        first: Index of the first block.
        stop: One past the index of the last block.
    """

    dataset: Dataset
    shard: Shard
    table: BlockTable
    first: int
    stop: int

    @property
    def start_byte(self) -> int:
        """Offset in the tar file of the first byte of the blocks."""
        return int(self.table.offset[self.first])

    @property
    def stop_byte(self) -> int:
        """Offset in the tar file of the first byte after the blocks."""
        return int(self.table.offset[self.stop - 1] + self.table.size[self.stop - 1])

    def __str__(self) -> str:
        return (
            f"{self.dataset.locate(self.shard.name)}, blocks {self.first} to {self.stop - 1}"
            f" (bytes {self.start_byte}-{self.stop_byte})"
        )

    def locate(self, block: int) -> str:
        """Returns the URL, index and first byte of a block, for messages."""
        url = self.dataset.locate(self.shard.name)
        return f"{url}, block {block} at byte {self.table.offset[block]}"


def fetch_blocks(blocks: BlockRange, attempts: Attempts) -> tuple[bytes, list[memoryview]]:
    """Reads a range of blocks from the store, and checks the crc32 of every block.

    Args:
        blocks: The blocks, consecutive ones of a shard, which are read by one request.
        attempts: Says when a request may be made, and when to give up.

    Returns:
        The bytes of the whole range, and a view of the bytes of each block.

    Raises:
        FileNotFoundError: The shard is missing.
        ShardReadError: In all attempts the bytes could not be read, or did not match the block
            table.
    """
    span = blocks.shard.name, blocks.start_byte, blocks.stop_byte

    def attempt(seconds: float) -> tuple[bytes, list[memoryview]]:
        data = call_within(seconds, lambda: blocks.dataset.read_bytes(*span))
        return data, split_blocks(data, blocks)

    return retry(attempt, attempts)


def read_table(dataset: Dataset, shard: Shard, attempts: Attempts) -> BlockTable:
    """Reads and checks the block table of a shard.

    Args:
        dataset: The dataset.
        shard: A shard of the dataset.
        attempts: Says when a request may be made, and when to give up.

    Raises:
        FileNotFoundError: The dataset's file of block tables is missing.
        ShardReadError: The table could not be read, or is not the one that the shard names.
    """

    def attempt(seconds: float) -> BlockTable:
        try:
            return call_within(seconds, lambda: dataset.blocks(shard, attempts=1))
        except StorageError:  # a ValueError too, but a fault of the store, not damage
            raise
        except ValueError as error:
            raise DamageError(str(error)) from error

    return retry(attempt, attempts)


def split_blocks(data: bytes, blocks: BlockRange) -> list[memoryview]:
    """Returns a view of the bytes of each block of a range.

    Args:
        data: The bytes of the whole range.
        blocks: The range.

    Raises:
        DamageError: A block's crc32 is not that of the block table.
    """
    table = blocks.table
    view = memoryview(data)
    bodies = []
    for block in range(blocks.first, blocks.stop):
        begin = int(table.offset[block]) - blocks.start_byte
        body = view[begin : begin + int(table.size[block])]
        actual = checksum(body)
        expected = int(table.crc32[block])
        if actual != expected:
            raise DamageError(
                f"{blocks.locate(block)}: crc32 of its {table.size[block]} bytes is {actual:08x},"
                f" not {expected:08x}"
            )
        bodies.append(body)
    return bodies
