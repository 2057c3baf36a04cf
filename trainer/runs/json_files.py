"""Files of runs and of other commands' output: written for people, and named where damaged."""

import json
from collections.abc import Mapping
from typing import Any

import yaml

from pipeline.storage.json_files import parse_object as parse_object  # for the rooms above


def to_json(values: Mapping[str, Any]) -> bytes:
    """A JSON file that a person can read."""
    return (json.dumps(values, indent=2) + "\n").encode()


def parse_yaml_object(data: bytes, where: str, remedy: str) -> dict[str, Any]:
    """Parses a YAML file of keys and values.

    Raises:
        ValueError: `data` is something else. The message begins with `where` and ends with the
            remedy.
    """
    try:
        found = yaml.safe_load(data)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())  # YAML's errors have lines
        raise ValueError(f"{where} is damaged, it is not YAML: {said}; {remedy}") from error
    if not isinstance(found, dict):
        shown = f"{str(found)[:60]!r}, expected keys and values"
        raise ValueError(f"{where} is damaged: it holds {shown}; {remedy}")  # noqa: TRY004
    return found
