"""Which numbers of a row of metrics.jsonl are curves, and what they are called."""

from collections.abc import Iterator, Mapping
from typing import Any

# Columns that say where a row stands rather than how it went.
PLACES = ("step", "split", "phase", "position", "instances", "masked", "tokens")
# Columns measured by a clock or the machine: they differ between two runs that are equal in all else.
MEASURED = (
    "tokens_per_second", "data_wait_share", "model_tflops_per_rank", "mfu", "peak_memory_bytes", "eta_seconds",
    "seconds", "phase_seconds",
)  # fmt: skip


def curves(row: Mapping[str, Any]) -> dict[str, float]:
    """Every number of a row as SPLIT/COLUMN or, below a table, SPLIT/COLUMN/KEY; measured ones as speed/COLUMN."""
    return dict(_walk(row))


def _walk(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for column, value in row.items():
        if column in PLACES:
            continue
        group = "speed" if column in MEASURED else str(row["split"])
        yield from _leaves(f"{group}/{column}", value)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{name}/{key}", inner)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield name, value
