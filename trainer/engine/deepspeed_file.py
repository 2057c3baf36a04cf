"""Reads a ds_config.json as DeepSpeed does: values by their keys, each in its type.

Values pass through the parser of settings files (pipeline/command_line/values.py). So a number may
be written as text, a whole number as 24.0, and NaN is refused. `"auto"` and null count as not
given.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hjson

from pipeline.command_line.names import suggest
from pipeline.command_line.values import convert, plain_node
from trainer.engine.deepspeed_keys import ALIASES, KEYS, SECTIONS, SWITCHED, Key, Refused

_ZERO = "zero_optimization"
_TRUE, _FALSE = (True, 1, "1"), (False, 0, "0")
_COMMENTS = ("_", "//", "#")
"""How keys begin that are there for a reader: none of DeepSpeed's does."""
_LONGEST_SHOWN = 60


@dataclass
class DeepSpeedFile:
    """The content of a ds_config.json.

    Attributes:
        path: The file's path.
        values: Values by dotted keys, such as optimizer.params.lr, in the types of `KEYS`.
        sections: Dotted names of the sections in the file.
        autos: Dotted keys whose value is "auto".
    """

    path: str
    values: dict[str, Any] = field(default_factory=dict)
    sections: set[str] = field(default_factory=set)
    autos: set[str] = field(default_factory=set)

    def passed_on(self) -> dict[str, Any]:
        """Returns the values that DeepSpeed is given, nested in sections."""
        passed: dict[str, Any] = {}
        for name, value in self.values.items():
            key = KEYS[name]
            if isinstance(key, Key) and key.is_passed:
                section, _, leaf = name.rpartition(".")
                (passed.setdefault(section, {}) if section else passed)[leaf] = value
        return passed


def passed_to_deepspeed(path: str | None) -> dict[str, Any]:
    """Returns the values of a ds_config.json that DeepSpeed is given; empty without a file."""
    return {} if path is None else read_deepspeed_file(path).passed_on()


def read_deepspeed_file(path: str) -> DeepSpeedFile:
    """Reads a ds_config.json: JSON, or Hjson with comments and trailing commas, as DeepSpeed does.

    Raises:
        ValueError: The file is neither, has a key twice or a value of a wrong type, or asks for
            something that is not supported. The message has one line for each mistake.
    """
    root = _parse(path)
    if not isinstance(root, dict):
        raise ValueError(f"{path}: found {_shown(root)}, expected the settings of DeepSpeed")  # noqa: TRY004
    if isinstance(root.get(_ZERO), bool):  # the old form
        root[_ZERO] = {"stage": int(root[_ZERO])}
        if root.get("allgather_size") not in (None, "auto"):
            root[_ZERO]["allgather_bucket_size"] = root["allgather_size"]
    file = DeepSpeedFile(path)
    if faults := list(_read_section(file, root, "")):
        raise ValueError("\n".join(faults))
    return file


def _parse(path: str) -> Any:
    """Parses the file to dicts, lists and values.

    Raises:
        ValueError: The file is empty, is neither JSON nor Hjson, or has a key twice.
    """
    text = Path(path).read_bytes()
    if not text.strip():
        raise ValueError(f"{path} is empty, expected the settings of DeepSpeed")
    hook = _Pairs
    try:
        decoded = text.decode("utf-8-sig")
        try:
            root = json.loads(decoded, object_pairs_hook=hook)
        except json.JSONDecodeError as of_json:
            try:
                root = hjson.loads(decoded, object_pairs_hook=hook)
            except hjson.HjsonDecodeError as of_hjson:
                both = f"JSON ({of_json}) nor Hjson ({of_hjson})"
                raise ValueError(f"{path} is neither {both}") from of_hjson
        return _as_dicts(root, path, "")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deep, expected DeepSpeed's settings") from error


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of an object, in which a key may occur twice."""


def _as_dicts(value: Any, path: str, name: str) -> Any:
    """Converts parsed objects to dicts.

    Raises:
        ValueError: An object has a key twice.
    """
    if isinstance(value, _Pairs):
        dotted = [(key, f"{name}.{key}" if name else key) for key, _ in value]
        for (_, whole), count in Counter(dotted).items():
            if count > 1:
                raise ValueError(f"{path} says {whole} {count} times; leave one")
        return {
            key: _as_dicts(each, path, whole)
            for (key, whole), (_, each) in zip(dotted, value, strict=True)
        }
    return [_as_dicts(each, path, name) for each in value] if isinstance(value, list) else value


def _read_section(file: DeepSpeedFile, section: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """Stores the values of a section and its subsections in `file`; yields its mistakes."""
    for leaf, value in section.items():
        name = ALIASES.get(f"{prefix}{leaf}", f"{prefix}{leaf}")
        key = KEYS.get(name)
        if value is None or leaf.startswith(_COMMENTS):
            continue
        if value == "auto":
            file.autos.add(name)
        elif name in SECTIONS:
            if isinstance(value, dict):
                file.sections.add(name)
                yield from _read_section(file, _used(name, value), f"{name}.")
            else:
                yield f"{file.path}: {name}: found {_shown(value)}, expected keys and values"
        elif key is None:
            yield f"{file.path} sets {name}, which has no place here: {_unknown(leaf, prefix)}"
        elif isinstance(key, Refused):
            if not _is_off(value, key):
                yield _refusal(file.path, name, value, key.reason)
        else:
            try:
                file.values[name] = _convert(file.path, name, value, key)
            except ValueError as error:
                yield str(error)


def _used(name: str, section: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the keys of a section that DeepSpeed reads: only the switch if it is off."""
    is_off = name in SWITCHED and section.get("enabled", False) in _FALSE
    return {key: section[key] for key in section if key == "enabled"} if is_off else section


def _convert(path: str, name: str, value: Any, key: Key) -> Any:
    """Converts a value to the type of its key.

    Raises:
        ValueError: The value is of another type, or is not allowed.
    """
    if key.hint is bool and value in (*_TRUE, *_FALSE):
        found = value in _TRUE  # 1 and 0 are switches for DeepSpeed too
    elif key.hint is Any:
        found = value
    else:
        found = convert(plain_node(value, path), key.hint, name)
    if key.least is not None and found < key.least:
        raise ValueError(f"{path}: {name}: found {_shown(value)}, expected at least {key.least:g}")
    if key.only and found not in key.only:
        raise ValueError(_refusal(path, name, value, key.reason))
    return found


def _refusal(path: str, name: str, value: Any, reason: str) -> str:
    shown = "" if isinstance(value, dict) else f" to {_shown(value)}"
    return f"{path} sets {name}{shown}, which has no place here: {reason}"


def _unknown(leaf: str, prefix: str) -> str:
    """Returns the message about a key that DeepSpeed does not have in this section."""
    elsewhere = [name for name in (*KEYS, *SECTIONS) if name.rpartition(".")[2] == leaf]
    there = [
        name.removeprefix(prefix).partition(".")[0] for name in KEYS if name.startswith(prefix)
    ]
    near = [prefix + each for each in suggest(leaf, dict.fromkeys(there))]
    if names := (elsewhere or near)[:2]:
        return f"no such key is known; did you mean {' or '.join(names)}? Otherwise leave it out"
    return "no such key is known; leave it out"


def _is_off(value: Any, key: Refused) -> bool:
    """Returns whether a value switches off what its key refuses."""
    if isinstance(value, dict):
        switches = key.switches or tuple(value)
        return all(_is_off(value[name], key) for name in switches if name in value)
    return value in (None, False, 0, "", "none", "auto", "false", "0") or value == []


def _shown(value: Any) -> str:
    """Returns a value as JSON for a message; a long one is cut."""
    shown = json.dumps(value)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}..."
