"""JSON files of runs and of other commands' output: written for people, and named where they are damaged."""

import json
from collections.abc import Mapping
from typing import Any


def to_json(values: Mapping[str, Any]) -> bytes:
    """A JSON file that a person can read."""
    return (json.dumps(values, indent=2) + "\n").encode()


def parse_object(data: bytes, where: str, remedy: str) -> dict[str, Any]:
    """A JSON object; a ValueError with the file's place and the remedy where it is none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is damaged, it is not JSON: {error}; {remedy}") from error
    if not isinstance(found, dict):
        shown = f"{str(found)[:60]!r}, expected an object"
        raise ValueError(f"{where} is damaged: it holds {shown}; {remedy}")  # noqa: TRY004
    return found
