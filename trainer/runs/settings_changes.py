"""Which settings a continued run may change."""

from collections.abc import Iterator
from typing import Any

# Settings that a continued run may change: they move work and files around, not what is learned.
# The data and what was skipped are checked by content, in the run's folder and in the stream's state.
FREE_ON_RESUME = (
    "data", "output", "validation", "checkpoint", "safety", "zero_stage", "deepspeed", "micro_tokens", "skip", "follow",
    "follow_limit_minutes", "cache_dir", "cache_bytes", "reading", "tensorboard", "wandb", "profile", "peak_tflops",
    "activation_checkpointing", "compile",
)  # fmt: skip


def changes(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Settings, as plain values, that differ between two runs and may not: (key, old value, new value)."""
    for key in sorted({*old, *new}):
        if not prefix and key in FREE_ON_RESUME:
            continue
        yield from _changes_of_value(f"{prefix}{key}", old.get(key), new.get(key))


def _changes_of_value(key: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        yield from changes(old, new, f"{key}.")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new, strict=True)):
            yield from _changes_of_value(f"{key}.{index}", *pair)
    elif old != new:
        yield key, old, new
