"""Reads a ds_config.json as DeepSpeed does, and checks every value by the rules of `KEYS`.

Values are converted by the parser of settings files (pipeline/command_line/values.py). So a number
may be written as text, a whole number as 24.0, and NaN is refused. `"auto"` and null count as not
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
_TRUE = (True, 1, "1")
_FALSE = (False, 0, "0")
_COMMENTS = ("_", "//", "#")
"""Beginnings of keys that hold a comment; no key of DeepSpeed begins like this."""
_LONGEST_SHOWN = 60
"""The most characters of a value in a message."""


@dataclass
class DeepSpeedFile:
    """The content of a ds_config.json.

    Attributes:
        path: The file's path.
        values: The values by their dotted keys, such as optimizer.params.lr. Each has the type that
            the rule of its key in `KEYS` names. Keys whose value is null or "auto" are left out.
        sections: Dotted names of the sections in the file.
        autos: Dotted keys whose value is "auto".
    """

    path: str
    values: dict[str, Any] = field(default_factory=dict)
    sections: set[str] = field(default_factory=set)
    autos: set[str] = field(default_factory=set)

    def passed_on(self) -> dict[str, Any]:
        """Returns the values that are passed on to DeepSpeed, as nested dicts like the file's."""
        passed: dict[str, Any] = {}
        for name, value in self.values.items():
            key = KEYS[name]
            if isinstance(key, Key) and key.is_passed:
                section, _, leaf = name.rpartition(".")
                target = passed.setdefault(section, {}) if section else passed
                target[leaf] = value
        return passed


def passed_to_deepspeed(path: str | None) -> dict[str, Any]:
    """Returns the values of a ds_config.json that are passed on to DeepSpeed, as nested dicts.

    Args:
        path: The file; None returns an empty dict.

    Raises:
        ValueError: The file has a mistake, as in `read_deepspeed_file`.
    """
    return {} if path is None else read_deepspeed_file(path).passed_on()


def read_deepspeed_file(path: str) -> DeepSpeedFile:
    """Reads a ds_config.json: JSON, or Hjson with comments and trailing commas, as DeepSpeed does.

    Raises:
        ValueError: The file is neither JSON nor Hjson, has a key twice, has a value of a wrong
            type, or asks for something that is not supported. The message has one line for each
            mistake.
    """
    root = _parse(path)
    if not isinstance(root, dict):
        raise ValueError(f"{path}: found {_shown(root)}, expected the settings of DeepSpeed")  # noqa: TRY004
    if isinstance(root.get(_ZERO), bool):  # the old form of this section
        root[_ZERO] = {"stage": int(root[_ZERO])}
        if root.get("allgather_size") not in (None, "auto"):
            root[_ZERO]["allgather_bucket_size"] = root["allgather_size"]
    file = DeepSpeedFile(path)
    faults = list(_read_section(file, root, ""))
    if faults:
        raise ValueError("\n".join(faults))
    return file


def _parse(path: str) -> Any:
    """Parses a ds_config.json, and returns its content as dicts, lists and values.

    Raises:
        ValueError: The file is empty, is neither JSON nor Hjson, or has a key twice.
    """
    data = Path(path).read_bytes()
    if not data.strip():
        raise ValueError(f"{path} is empty, expected the settings of DeepSpeed")
    try:
        text = data.decode("utf-8-sig")
        try:
            root = json.loads(text, object_pairs_hook=_Pairs)
        except json.JSONDecodeError as json_error:
            try:
                root = hjson.loads(text, object_pairs_hook=_Pairs)
            except hjson.HjsonDecodeError as hjson_error:
                both = f"JSON ({json_error}) nor Hjson ({hjson_error})"
                raise ValueError(f"{path} is neither {both}") from hjson_error
        return _as_dicts(root, path, "")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deep, expected DeepSpeed's settings") from error


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of one JSON object, in which a key may occur twice."""


def _as_dicts(value: Any, path: str, name: str) -> Any:
    """Returns a parsed value with a dict for every object in it.

    Args:
        value: The value, with a `_Pairs` for every object in it.
        path: The file, for messages.
        name: The dotted key of the value; "" for the whole file.

    Raises:
        ValueError: An object has a key twice.
    """
    if isinstance(value, _Pairs):
        prefix = f"{name}." if name else ""
        for key, count in Counter(key for key, _ in value).items():
            if count > 1:
                raise ValueError(f"{path} says {prefix}{key} {count} times; leave one")
        return {key: _as_dicts(item, path, f"{prefix}{key}") for key, item in value}
    if isinstance(value, list):
        return [_as_dicts(item, path, name) for item in value]
    return value


def _read_section(file: DeepSpeedFile, section: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """Stores the values of a section and its subsections in `file`, and yields the mistakes.

    Args:
        file: Gets the values. All of them are stored only when the caller has read this iterator to
            its end.
        section: The keys and values of the section.
        prefix: The section's dotted name and a dot; "" for the whole file.

    Yields:
        A message for each mistake in the section.
    """
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
    """Returns the part of a section that DeepSpeed reads.

    DeepSpeed ignores a section that is named in `SWITCHED` and whose key `enabled` is false or
    missing. Of such a section, only the key `enabled` is returned. Of all others, every key is.

    Args:
        name: The section's dotted name.
        section: The keys and values of the section.
    """
    is_off = name in SWITCHED and section.get("enabled", False) in _FALSE
    if is_off:
        return {key: section[key] for key in section if key == "enabled"}
    return section


def _convert(path: str, name: str, value: Any, key: Key) -> Any:
    """Converts a value to the type that the rule of its key names, and checks it by that rule.

    Args:
        path: The file, for messages.
        name: The dotted key of the value.
        value: The value as it was parsed.
        key: The rule of the key.

    Raises:
        ValueError: The value is of another type, or the rule does not allow it.
    """
    if key.hint is bool and value in (*_TRUE, *_FALSE):
        converted = value in _TRUE  # DeepSpeed takes 1 and 0 for true and false as well
    elif key.hint is Any:
        converted = value
    else:
        converted = convert(plain_node(value, path), key.hint, name)
    if key.least is not None and converted < key.least:
        raise ValueError(f"{path}: {name}: found {_shown(value)}, expected at least {key.least:g}")
    if key.only and converted not in key.only:
        raise ValueError(_refusal(path, name, value, key.reason))
    return converted


def _refusal(path: str, name: str, value: Any, reason: str) -> str:
    """Returns the message about a key or value that this trainer does not support.

    Args:
        path: The file.
        name: The dotted key.
        value: The value of the key.
        reason: Why it is refused, and what to do (`Key.reason`).
    """
    shown = "" if isinstance(value, dict) else f" to {_shown(value)}"
    return f"{path} sets {name}{shown}, which has no place here: {reason}"


def _unknown(leaf: str, prefix: str) -> str:
    """Returns what to say about a key that DeepSpeed does not have, with up to two suggestions.

    The suggestions are keys of the same name in other sections, or else keys of this section that
    are spelled alike.

    Args:
        leaf: The key, without its section.
        prefix: The section's dotted name and a dot; "" for the whole file.
    """
    same_keys = [name for name in (*KEYS, *SECTIONS) if name.rpartition(".")[2] == leaf]
    siblings = [
        name.removeprefix(prefix).partition(".")[0] for name in KEYS if name.startswith(prefix)
    ]
    similar_keys = [prefix + name for name in suggest(leaf, dict.fromkeys(siblings))]
    suggestions = (same_keys or similar_keys)[:2]
    if suggestions:
        names = " or ".join(suggestions)
        return f"no such key is known; did you mean {names}? Otherwise leave it out"
    return "no such key is known; leave it out"


def _is_off(value: Any, key: Refused) -> bool:
    """Returns whether a value switches a feature of DeepSpeed off, as `Refused` defines it.

    Args:
        value: The value of the key: a plain value, or the keys and values of a section.
        key: The rule of the key.
    """
    if isinstance(value, dict):
        switches = key.switches or tuple(value)
        return all(_is_off(value[name], key) for name in switches if name in value)
    return value in (None, False, 0, "", "none", "auto", "false", "0") or value == []


def _shown(value: Any) -> str:
    """Returns a value as JSON for a message, cut if it is longer than `_LONGEST_SHOWN`."""
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
