"""Writes JSON files that people can read, and parses JSON and YAML files of runs.

The message about a damaged file names the file.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from pipeline.storage.json_files import parse_object as parse_object  # re-exported

_LONGEST_SHOWN = 60
_WORDS = {
    dict: "an object", list: "a list", str: "a text", int: "a whole number", float: "a number",
}  # fmt: skip


def to_json(values: Mapping[str, Any]) -> bytes:
    """Returns the content of a JSON file that is indented for people.

    A number that is not finite becomes null (`to_strict`).
    """
    return (json.dumps(to_strict(values), indent=2, allow_nan=False) + "\n").encode()


def to_strict(value: Any) -> Any:
    """Returns a value with None for every number that is not finite, which JSON does not have."""
    if isinstance(value, Mapping):
        return {name: to_strict(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def parse_yaml_object(data: bytes, where: str, remedy: str) -> dict[str, Any]:
    """Parses a YAML file of keys and values.

    Raises:
        ValueError: `data` is something else. The message begins with `where` and ends with the
            remedy.
    """
    try:
        content = yaml.safe_load(data)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())  # YAML's errors have lines
        raise ValueError(f"{where} is damaged, it is not YAML: {reason}; {remedy}") from error
    if not isinstance(content, dict):
        shown = f"{str(content)[:60]!r}, expected keys and values"
        raise ValueError(f"{where} is damaged: it holds {shown}; {remedy}")  # noqa: TRY004
    return content


def wrong_types(value: Any, shape: Any, name: str) -> Iterator[str]:
    """Yields a message for every value of a parsed file that has a wrong type.

    A message is such as "launches is 3, expected a list".

    Args:
        value: The parsed value.
        shape: The expected types: str, int or float (any number); a list of one shape, which every
            item must have; or a dict of shapes by key. A key may be absent, and keys without a
            shape are not checked.
        name: The value's key in the file, for the message.
    """
    kind: Any = shape if isinstance(shape, type) else type(shape)
    is_number = kind is float and isinstance(value, int)
    if not (is_number or isinstance(value, kind)):
        yield f"{name} is {repr(value)[:_LONGEST_SHOWN]}, expected {_WORDS[kind]}"
    elif isinstance(shape, list):
        for index, item in enumerate(value):
            yield from wrong_types(item, shape[0], f"{name}[{index}]")
    elif isinstance(shape, dict):
        for key, inner in shape.items():
            if key in value:
                yield from wrong_types(value[key], inner, f"{name}.{key}")
