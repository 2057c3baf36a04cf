"""Values of settings by their dotted keys, from YAML to the types that a settings class states.

A file's nodes carry file and line; a word of the command line is a node without either.
"""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml

from pipeline.command_line.hints import (
    alternatives,
    choices_of,
    describe_type,
    find_hint,
    hints_of,
    is_mapping,
    is_needed,
    item_of,
    kind_of,
    section_of,
)
from pipeline.command_line.names import answer_unknown

BOOLEANS: dict[str, bool] = yaml.SafeLoader.bool_values
_NULL = "tag:yaml.org,2002:null"
_LONGEST_SHOWN = 60
_NO_LINE = -1


class Given(NamedTuple):
    """A value that was given, in the type of its field; of a list of sections how many there are.

    File and line begin messages, and are empty for words of the command line.
    """

    value: Any
    where: str


class Loader(yaml.SafeLoader):
    """YAML 1.1 in which 1e-4 is a number, as in YAML 1.2."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?\d[\d_]*(\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def parse_yaml(text: str | bytes, name: str, *, is_file: bool) -> yaml.Node | None:
    """The root of a text, None where it is empty; a ValueError where it is not YAML."""
    try:
        loader = Loader(text)
        loader.name = name if is_file else ""
        root: yaml.Node | None = loader.get_single_node()
    except RecursionError as error:
        raise ValueError(f"{name}: not YAML of settings: it is nested too deep") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if is_file and mark else ""
        said = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ValueError(f"{name}{line}: not YAML: {said}") from error
    return root


def word_node(word: str) -> yaml.ScalarNode:
    """A word of the command line as a node."""
    return yaml.ScalarNode(_NULL if word == "null" else "tag:yaml.org,2002:str", word)


def plain_node(value: Any, name: str) -> yaml.Node:
    """Converts a plain value, as a JSON parser returns it, to a YAML node.

    Args:
        value: A mapping, a list, text, a number, a boolean or None. A float such as 24.0 or 1e9
            becomes a whole number, because JSON has one kind of number.
        name: The file that the value is from; messages begin with it.
    """
    mark = yaml.Mark(name, 0, _NO_LINE, 0, None, 0)
    if isinstance(value, Mapping):
        pairs = [(plain_node(key, name), plain_node(each, name)) for key, each in value.items()]
        return yaml.MappingNode("tag:yaml.org,2002:map", pairs, mark)
    if isinstance(value, list):
        items = [plain_node(each, name) for each in value]
        return yaml.SequenceNode("tag:yaml.org,2002:seq", items, mark)
    if value is None:
        return yaml.ScalarNode(_NULL, "null", mark)
    if isinstance(value, bool):
        return yaml.ScalarNode("tag:yaml.org,2002:bool", str(value).lower(), mark)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return yaml.ScalarNode("tag:yaml.org,2002:str", str(value), mark)


def read_mapping(
    node: yaml.Node, settings_class: Any, prefix: str = ""
) -> Iterator[tuple[str, Given]]:
    """Dotted keys and values of a mapping, in the types of a settings class.

    A ValueError names a key that is unknown or stands there twice, or a value of another type.
    """
    if not isinstance(node, yaml.MappingNode):
        keys = "keys and values, with keys such as " + ", ".join(
            sorted(hints_of(settings_class))[:3]
        )
        place = _place(node, prefix.rstrip(".") or "settings")
        raise ValueError(f"{place}: found {_shown(node)}, expected {keys}")  # noqa: TRY004
    for name, value in _pairs(node, prefix):
        hint = find_hint(settings_class, name)
        if hint is None:
            raise ValueError(answer_unknown(name, settings_class, prefix, _where(value)))
        yield from read_value(value, hint, f"{prefix}{name}")


def read_value(node: yaml.Node, hint: Any, key: str) -> Iterator[tuple[str, Given]]:
    """The value of a key, or of each key below it; raises as `read_mapping`."""
    item = section_of(item_of(hint))
    if section := section_of(hint):
        yield from read_mapping(node, section, f"{key}.")
    elif is_mapping(hint) and isinstance(node, yaml.MappingNode):
        for name, value in _pairs(node, f"{key}."):
            yield f"{key}.{name}", Given(convert(value, Any, key), _where(value))
    elif item and isinstance(node, yaml.SequenceNode):
        yield key, Given(len(node.value), _where(node))
        for index, each in enumerate(node.value):
            yield f"{key}[{index}]", Given(None, _where(each))
            yield from read_mapping(each, item, f"{key}[{index}].")
    else:
        yield key, Given(convert(node, hint, key), _where(node))


def _where(node: yaml.Node) -> str:
    """Returns "FILE:LINE: " for the start of a message; "FILE: " if no line is known."""
    mark = node.start_mark
    if mark is None or not mark.name:
        return ""
    line = f":{mark.line + 1}" if mark.line != _NO_LINE else ""
    return f"{mark.name}{line}: "


def _place(node: yaml.Node, key: str) -> str:
    return f"{_where(node) or '--'}{key}"


def _pairs(node: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, yaml.Node]]:
    names: set[str] = set()
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            found = f"{_where(key)}found {_shown(key)}"
            raise ValueError(f"{found} in the place of a key, expected a name")  # noqa: TRY004
        if key.value in names:
            raise ValueError(f"{_place(key, prefix + key.value)} stands there twice; leave one out")
        names.add(key.value)
        yield key.value, value


def convert(node: yaml.Node, hint: Any, key: str) -> Any:
    """A value of a field's type; a ValueError names the place, what was found and is allowed."""
    kind = kind_of(hint)
    if node.tag == _NULL and types.NoneType in alternatives(hint):
        return None
    if (inner := item_of(kind)) and isinstance(node, yaml.SequenceNode):
        keys = [f"{key}[{i}]" if _where(each) else key for i, each in enumerate(node.value)]
        return [convert(each, inner, name) for each, name in zip(node.value, keys, strict=True)]
    try:
        return Loader("").construct_document(node) if kind is Any else _convert_scalar(node, kind)
    except yaml.MarkedYAMLError as error:
        raise ValueError(f"{_place(node, key)}: {error.problem}") from error
    except ValueError:
        said = f"{_place(node, key)}: found {_shown(node)}, expected {describe_type(hint)}"
        is_list = not _where(node) and "," in str(node.value)
        hint_of_list = "; several values stand apart by spaces" if is_list else ""
        raise ValueError(f"{said}{hint_of_list}") from None


def _convert_scalar(node: yaml.Node, kind: Any) -> Any:
    is_word = kind is str and not _where(node)  # such as --text null
    if not isinstance(node, yaml.ScalarNode) or (node.tag == _NULL and not is_word):
        raise ValueError
    if kind is bool and node.value.lower() in BOOLEANS:
        return BOOLEANS[node.value.lower()]
    if choices_of(kind):
        return typing.get_args(kind)[choices_of(kind).index(node.value)]
    if kind not in (int, float, str):
        raise ValueError
    value = kind(node.value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError
    return value


def _shown(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        return "keys and values" if isinstance(node, yaml.MappingNode) else "a list"
    if node.tag == _NULL:
        return "null" if node.value else "nothing"
    shown = node.value if len(node.value) <= _LONGEST_SHOWN else f"{node.value[:_LONGEST_SHOWN]}..."
    return repr(shown)


def make(settings_class: Any, given: Mapping[str, Given], prefix: str = "") -> Any:
    """An object of a settings class, of the values whose keys begin so."""
    values: dict[str, Any] = {}
    for name, hint in hints_of(settings_class).items():
        key, item = f"{prefix}{name}", section_of(item_of(hint))
        below = {each: value for each, value in given.items() if each.startswith(f"{key}.")}
        if item and (key in given or below):
            count = given[key].value if key in given else 1
            values[name] = [_make_item(item, given, below, key, index) for index in range(count)]
        elif section_of(hint) and below:
            values[name] = make(section_of(hint), below, f"{key}.")
        elif is_mapping(hint) and below:
            values[name] = {each[len(key) + 1 :]: below[each].value for each in below}
        elif key in given:
            values[name] = given[key].value
    try:
        return settings_class(**values)
    except ValueError as error:
        named = re.match(r"\w+(\[\d+\])?", str(error).removeprefix(prefix))
        found = given.get(f"{prefix}{named[0]}") if named else None
        raise ValueError(f"{found.where if found else ''}{error}") from error


def _make_item(
    kind: Any, given: Mapping[str, Given], below: Mapping[str, Given], key: str, index: int
) -> Any:
    """An item of a list, in which values that are given for all of them win."""
    prefix = f"{key}[{index}]."
    own = {each: value for each, value in given.items() if each.startswith(prefix)}
    own |= {f"{prefix}{each[len(key) + 1 :]}": value for each, value in below.items()}
    if missing := missing_fields(kind, own, prefix):
        place = given[f"{key}[{index}]"].where + prefix[:-1] if key in given else f"--{key}"
        raise ValueError(f"{place}: {', '.join(missing)} missing; each item needs it")
    return make(kind, own, prefix)


def missing_fields(settings_class: Any, given: Mapping[str, Given], prefix: str = "") -> list[str]:
    """Names of the fields that have no default and were not given."""
    roots = {re.split(r"[.]", key.removeprefix(prefix))[0] for key in given}
    needed = [field.name for field in dataclasses.fields(settings_class) if is_needed(field)]
    return [name for name in needed if name not in roots]
