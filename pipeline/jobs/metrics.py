"""Reports counters and distributions, which a runner shows while a job is at work."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from apache_beam.metrics import Metrics

_NAMESPACE = "beambert"


def count(numbers: Mapping[str, int]) -> None:
    """Adds each number to the job's counter of that name. Outside a job it does nothing."""
    for name, number in numbers.items():
        _counter(name).inc(number)


def observe(numbers: Mapping[str, float]) -> None:
    """Adds each number, rounded, to the job's distribution of that name."""
    for name, number in numbers.items():
        _distribution(name).update(round(number))


def observe_each(name: str, numbers: Iterable[int]) -> None:
    """Adds all the numbers to the job's distribution of a name."""
    distribution = _distribution(name)
    for number in numbers:
        distribution.update(number)


@cache  # making one takes as long as several updates
def _counter(name: str) -> Any:
    """Returns the counter of a name."""
    return Metrics.counter(_NAMESPACE, name)


@cache
def _distribution(name: str) -> Any:
    """Returns the distribution of a name."""
    return Metrics.distribution(_NAMESPACE, name)
