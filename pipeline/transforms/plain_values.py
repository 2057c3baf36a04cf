"""Converts rows of a table to dicts, also inside other values.

Beam's rows are named tuples. Encoded as tuples they would lose the names of their fields.
"""

from collections.abc import Mapping
from typing import Any


def as_mapping(row: Any) -> Mapping[str, Any]:
    """Returns the fields of a row by their names.

    Raises:
        ValueError: The value is neither a row nor a mapping.
    """
    if isinstance(row, Mapping):
        return row
    if not hasattr(row, "_asdict"):
        raise ValueError(f"found a {type(row).__name__}, expected a row of a table: {row!r:.60}")
    return dict(row._asdict())


def to_plain(value: Any) -> Any:
    """Returns a value with all rows in it converted to dicts, also in lists, tuples and dicts."""
    if hasattr(value, "_asdict"):
        return to_plain(value._asdict())
    if isinstance(value, Mapping):
        return {name: to_plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [to_plain(part) for part in value]
    if isinstance(value, tuple):
        return tuple(to_plain(part) for part in value)
    return value
