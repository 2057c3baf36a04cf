"""Calls a function for many items in several threads, ahead of the caller that takes the results.

The number of results that have not been taken is bounded, and with it the memory.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

AT_ONCE = 32
"""Default number of concurrent requests to a store: 32 requests of 30 ms make 1,000 per second."""


def map_ahead(
    function: Callable[[Item], Result], items: Iterable[Item], at_once: int = AT_ONCE
) -> Iterator[Result]:
    """Yields `function(item)` for every item, in the order of the items, computed by threads.

    Args:
        function: Called in `at_once` threads. If it raises an error for an item, the error is
            raised in place of the item's result.
        items: The inputs, which are taken lazily.
        at_once: Number of threads. At most `2 * at_once` items are worked on, or have results that
            the caller has not taken yet.
    """
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(at_once) as threads:
        try:
            for item in items:
                waiting.append(threads.submit(function, item))
                if len(waiting) == 2 * at_once:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
