"""Counters and distributions that a runner shows of a job while it runs."""

from collections.abc import Mapping

from apache_beam.metrics import Metrics

_NAMESPACE = "beambert"


def count(numbers: Mapping[str, int]) -> None:
    """Adds to the job's counters of these names; outside a job nothing happens."""
    for name, number in numbers.items():
        Metrics.counter(_NAMESPACE, name).inc(number)


def observe(numbers: Mapping[str, float]) -> None:
    """Adds a value to each distribution of these names, rounded."""
    for name, number in numbers.items():
        Metrics.distribution(_NAMESPACE, name).update(round(number))
