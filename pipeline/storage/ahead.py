"""Calls a function for many items in several threads; a bounded number of results waits."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

AT_ONCE = 32
"""Requests to a store: of 30 ms each, so many give a thousand a second."""


def map_ahead(
    function: Callable[[Item], Result], items: Iterable[Item], at_once: int = AT_ONCE
) -> Iterator[Result]:
    """The results in the order of the items; at most twice `at_once` of them wait to be taken."""
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
