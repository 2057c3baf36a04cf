"""Says in a worker's log why a job on Flink may stand still.

Beam's job server for Flink takes the output of a bundle out of a queue only when the bundle has
ended, and in a batch job a slot has one bundle. If the queue is full, the worker waits for the
engine and the engine for the worker, for ever (docs/runners.md, Flink). Nothing else in the engine
says so. Spark's job server has the same code of Beam.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.runners.portability.portable_runner import PortableRunner

MOST_BYTES = 2**30
"""The output of a bundle after which a line is logged. The queues hold some 1.2 GB."""
_LOGGER = logging.getLogger(__name__)


def log_large_bundles(
    elements: beam.PCollection, size_of: Callable[[Any], int]
) -> beam.PCollection:
    """Adds a step that logs a line when a bundle of elements becomes as large as Flink can take.

    Runners that are not reached by a job server have no such queue, and get no step.

    Args:
        elements: What workers send to the runner.
        size_of: Returns the number of bytes of an element.

    Returns:
        The same elements.
    """
    if not isinstance(elements.pipeline.runner, PortableRunner):
        return elements
    step = beam.ParDo(LogLargeBundles(size_of)).with_output_types(elements.element_type)
    return elements | "LogLargeBundles" >> step


class LogLargeBundles(beam.DoFn):  # type: ignore[misc]
    """Passes elements on, and logs a line when those of a bundle exceed `MOST_BYTES`."""

    def __init__(self, size_of: Callable[[Any], int]) -> None:
        """Keeps the function that returns the number of bytes of an element."""
        self._size_of = size_of
        self._num_bytes = 0

    def start_bundle(self) -> None:
        """Begins to count anew."""
        self._num_bytes = 0

    def process(self, element: Any) -> Iterator[Any]:
        """Counts an element, and yields it."""
        was_small = self._num_bytes <= MOST_BYTES
        self._num_bytes += self._size_of(element)
        if was_small and self._num_bytes > MOST_BYTES:
            _LOGGER.warning(
                "a bundle has sent more than %d MiB to the runner and goes on; with some 1.2 GB a"
                " batch job on Flink waits for ever, and on Spark it may: if it makes no progress,"
                " stop it and give it more slots, or --streaming --max_bundle_size=2"
                " (docs/runners.md, Flink)",
                MOST_BYTES >> 20,
            )
        yield element
