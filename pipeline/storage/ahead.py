"""Calls a function for many items in several threads, and bounds how many results wait."""

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
        function: Called in `at_once` threads; an error that it raises is raised here in its turn.
        items: The inputs, which are taken lazily.
        at_once: Number of threads. At most `2 * at_once` results wait for the caller.
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
