"""Converts YAML and words of a command line to the types that a settings class states.

All given values are collected in a mapping from dotted keys, such as phases[0].peak_lr. `make` then
builds the settings from this mapping. Values from YAML and from the command line are both read from
nodes of PyYAML. A node of a file knows its file and line; a node of the command line does not.
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
"""The words of YAML for true and false, in lower case, with their values."""
_NULL = "tag:yaml.org,2002:null"
_LONGEST_SHOWN = 60
_NO_LINE = -1
"""The line of a node that was not parsed from YAML."""


class Given(NamedTuple):
    """A value that the user gave, and where the user gave it.

    Attributes:
        value: The value, converted to the type of its field. The value of a list of sections is the
            number of its items, which have values of their own.
        where: "FILE:LINE: ", with which messages about the value begin. Empty if it was given on
            the command line.
    """

    value: Any
    where: str


class Loader(yaml.SafeLoader):
    """A loader of YAML 1.1 that also takes 1e-4 for a number, as YAML 1.2 does."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?\d[\d_]*(\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def parse_yaml(text: str | bytes, name: str, *, is_file: bool) -> yaml.Node | None:
    """Parses a text as YAML, without converting it to Python's types yet.

    Args:
        text: The YAML.
        name: The file, or the flag that has the text as its value; messages begin with it.
        is_file: Whether the text is a file, so that messages name its lines.

    Returns:
        The root of the document, or None if the text is empty.

    Raises:
        ValueError: The text is not YAML, or is nested too deeply.
    """
    try:
        loader = Loader(text)
        loader.name = name if is_file else ""
        root: yaml.Node | None = loader.get_single_node()
    except RecursionError as error:
        raise ValueError(f"{name}: not YAML of settings: it is nested too deep") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if is_file and mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ValueError(f"{name}{line}: not YAML: {problem}") from error
    return root


def word_node(word: str) -> yaml.ScalarNode:
    """Makes a YAML node of a word of the command line.

    The node is text, whatever the word looks like. Only the word null becomes YAML's null.
    """
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
        pairs = [(plain_node(key, name), plain_node(item, name)) for key, item in value.items()]
        return yaml.MappingNode("tag:yaml.org,2002:map", pairs, mark)
    if isinstance(value, list):
        items = [plain_node(item, name) for item in value]
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
    """Yields the dotted keys and the values of a mapping, in the types of a settings class.

    Args:
        node: The mapping.
        settings_class: The class whose fields the keys name.
        prefix: What precedes each key: empty, or the keys of the outer sections, as in "model.".

    Raises:
        ValueError: A key is unknown or is there twice, or a value is not of its field's type.
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
    """Yields a dotted key with its value, converted to the type of its field.

    For a section, the keys of its fields are yielded instead, and for a mapping its own keys. For a
    list of sections, its key is yielded, and then the keys of all fields of all items.

    Args:
        node: The value.
        hint: The type of the key's field.
        key: The dotted key.

    Raises:
        ValueError: A key is unknown or is there twice, or a value is not of its field's type.
    """
    item = section_of(item_of(hint))
    if section := section_of(hint):
        yield from read_mapping(node, section, f"{key}.")
    elif is_mapping(hint) and isinstance(node, yaml.MappingNode):
        of_value = typing.get_args(hint)[1]
        for name, value in _pairs(node, f"{key}."):
            dotted = f"{key}.{name}"
            yield dotted, Given(convert(value, of_value, dotted), _where(value))
    elif item and isinstance(node, yaml.SequenceNode):
        yield key, Given(len(node.value), _where(node))
        for index, item_node in enumerate(node.value):
            yield f"{key}[{index}]", Given(None, _where(item_node))
            yield from read_mapping(item_node, item, f"{key}[{index}].")
    else:
        yield key, Given(convert(node, hint, key), _where(node))


def _where(node: yaml.Node) -> str:
    """Returns the beginning of a message about a node.

    It is "FILE:LINE: ", "FILE: " if no line is known, and empty for a word of the command line.
    """
    mark = node.start_mark
    if mark is None or not mark.name:
        return ""
    line = f":{mark.line + 1}" if mark.line != _NO_LINE else ""
    return f"{mark.name}{line}: "


def _place(node: yaml.Node, key: str) -> str:
    """Returns a key in the form in which a message names it.

    It is "FILE:LINE: KEY" if the node is from a file, and "--KEY" if it is from the command line.
    """
    return f"{_where(node) or '--'}{key}"


def _pairs(node: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, yaml.Node]]:
    """Yields the keys of a mapping, each with the node of its value.

    Args:
        node: The mapping.
        prefix: What precedes each key in messages, such as "model.".

    Raises:
        ValueError: A key is not a plain name, or is there twice.
    """
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
    """Converts a node to the type of a field.

    Args:
        node: A scalar or a list of scalars; for a field of type `Any`, any node.
        hint: The type of the field.
        key: The field's dotted key, for messages.

    Raises:
        ValueError: The value is not of that type; the message names the place, what was found and
            what was expected.
    """
    kind = kind_of(hint)
    if node.tag == _NULL and types.NoneType in alternatives(hint):
        return None

    if (inner := item_of(kind)) and isinstance(node, yaml.SequenceNode):
        keys = [f"{key}[{i}]" if _where(item) else key for i, item in enumerate(node.value)]
        return [convert(item, inner, name) for item, name in zip(node.value, keys, strict=True)]

    try:
        return Loader("").construct_document(node) if kind is Any else _convert_scalar(node, kind)
    except yaml.MarkedYAMLError as error:
        raise ValueError(f"{_place(node, key)}: {error.problem}") from error
    except ValueError:
        message = f"{_place(node, key)}: found {_shown(node)}, expected {describe_type(hint)}"
        is_list = not _where(node) and "," in str(node.value)
        cure = "; several values stand apart by spaces" if is_list else ""
        if not _where(node) and node.value == "":
            cure = "; is a variable of the shell empty?"
        raise ValueError(f"{message}{cure}") from None


def _convert_scalar(node: yaml.Node, kind: Any) -> Any:
    """Converts a node to a type that is not a list or a section.

    Args:
        node: The node, which should be a scalar.
        kind: The type, without None.

    Raises:
        ValueError: The value is not of this type. The error has no message; `convert` adds one.
    """
    is_word = kind is str and not _where(node)  # --text null means the word null
    if not isinstance(node, yaml.ScalarNode) or (node.tag == _NULL and not is_word):
        raise ValueError
    if kind is bool and node.value.lower() in BOOLEANS:
        return BOOLEANS[node.value.lower()]
    if choices_of(kind):
        return typing.get_args(kind)[choices_of(kind).index(node.value)]
    if kind not in (int, float, str) or (is_word and not node.value):
        raise ValueError
    value = kind(node.value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError
    return value


def _shown(node: yaml.Node) -> str:
    """Returns a node's value for a message: quoted and not too long, or what kind of node it is."""
    if not isinstance(node, yaml.ScalarNode):
        return "keys and values" if isinstance(node, yaml.MappingNode) else "a list"
    if node.tag == _NULL:
        return "null" if node.value else "nothing"
    shown = node.value if len(node.value) <= _LONGEST_SHOWN else f"{node.value[:_LONGEST_SHOWN]}..."
    return repr(shown)


def make_settings(settings_class: Any, given: Mapping[str, Given], prefix: str = "") -> Any:
    """Builds an object of a settings class. Fields that were not given keep their defaults.

    Args:
        settings_class: The class, a dataclass such as `BuildSettings`.
        given: The given values by their dotted keys.
        prefix: What precedes the keys of the class's fields, such as "model.". Keys without this
            prefix are ignored.

    Raises:
        ValueError: The class refuses a value. Or a field without a default was not given for an
            item of a list of sections.
    """
    values: dict[str, Any] = {}
    for name, hint in hints_of(settings_class).items():
        key = f"{prefix}{name}"
        item = section_of(item_of(hint))
        below = {dotted: value for dotted, value in given.items() if dotted.startswith(f"{key}.")}
        if item and (key in given or below):
            count = given[key].value if key in given else 1
            values[name] = [_make_item(item, given, below, key, index) for index in range(count)]
        elif section_of(hint) and below:
            values[name] = make_settings(section_of(hint), below, f"{key}.")
        elif is_mapping(hint) and below:
            values[name] = {dotted[len(key) + 1 :]: below[dotted].value for dotted in below}
        elif key in given:
            values[name] = given[key].value

    try:
        return settings_class(**values)
    except ValueError as error:
        # The message begins with the name of a field. If a file gave its value, the message gets
        # the file and the line before that.
        named = re.match(r"\w+(\[\d+\])?", str(error).removeprefix(prefix))
        given_value = given.get(f"{prefix}{named[0]}") if named else None
        raise ValueError(f"{given_value.where if given_value else ''}{error}") from error


def _make_item(
    kind: Any, given: Mapping[str, Given], below: Mapping[str, Given], key: str, index: int
) -> Any:
    """Builds one item of a list of sections, such as the first of the `phases`.

    Args:
        kind: The settings class of the item.
        given: All given values by their dotted keys. Those of the item begin with its key, as in
            phases[0].peak_lr.
        below: The values that were given for all items of the list at once, as in phases.peak_lr.
            They replace the values of the single item.
        key: The dotted key of the list.
        index: The index of the item in the list, from 0.

    Raises:
        ValueError: A field without a default was not given, or the class refuses a value.
    """
    prefix = f"{key}[{index}]."
    of_item = {dotted: value for dotted, value in given.items() if dotted.startswith(prefix)}
    of_item |= {f"{prefix}{dotted[len(key) + 1 :]}": value for dotted, value in below.items()}
    if missing := missing_fields(kind, of_item, prefix):
        place = given[f"{key}[{index}]"].where + prefix[:-1] if key in given else f"--{key}"
        raise ValueError(f"{place}: {', '.join(missing)} missing; each item needs it")
    return make_settings(kind, of_item, prefix)


def missing_fields(settings_class: Any, given: Mapping[str, Given], prefix: str = "") -> list[str]:
    """Returns the names of the fields that have no default and were not given.

    Args:
        settings_class: The class.
        given: The given values by their dotted keys.
        prefix: What precedes the keys of the class's fields.
    """
    roots = {re.split(r"[.]", key.removeprefix(prefix))[0] for key in given}
    needed = [field.name for field in dataclasses.fields(settings_class) if is_needed(field)]
    return [name for name in needed if name not in roots]
