"""Files of runs and of other commands' output: written for people, and named where damaged."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import yaml


def to_json(values: Mapping[str, Any]) -> bytes:
    """A JSON file that a person can read."""
    return (json.dumps(values, indent=2) + "\n").encode()


def parse_object(
    data: bytes, where: str, remedy: str, load: Callable[[bytes], Any] = json.loads
) -> dict[str, Any]:
    """Keys and values of a JSON or YAML file; a ValueError with its place where there are none."""
    try:
        found = load(data)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        kind = "JSON" if load is json.loads else "YAML"
        raise ValueError(f"{where} is damaged, it is not {kind}: {error}; {remedy}") from error
    if not isinstance(found, dict):
        shown = f"{str(found)[:60]!r}, expected an object"
        raise ValueError(f"{where} is damaged: it holds {shown}; {remedy}")  # noqa: TRY004
    return found
