"""Reports counters and distributions, which a runner shows while a job is at work."""

from collections.abc import Mapping

from apache_beam.metrics import Metrics

_NAMESPACE = "beambert"


def count(numbers: Mapping[str, int]) -> None:
    """Adds each number to the job's counter of that name. Outside a job it does nothing."""
    for name, number in numbers.items():
        Metrics.counter(_NAMESPACE, name).inc(number)


def observe(numbers: Mapping[str, float]) -> None:
    """Adds each number, rounded, to the job's distribution of that name."""
    for name, number in numbers.items():
        Metrics.distribution(_NAMESPACE, name).update(round(number))
