"""Values of settings, from YAML nodes to the types that a settings class states, with messages that name the place.

A file's nodes carry file and line; a word of the command line is a node without either. What was
given is kept as a tree of names, whose leaves are nodes, until everything is known; only then
objects are made of it.
"""

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import yaml

from pipeline.command_line.other_names import NOT_NEEDED, OLD_NAMES, OTHER_PROGRAMS

Tree = dict[str, Any]
"""Name of a field -> the node that it was given, or the tree of a nested settings class."""

BOOLEANS: dict[str, bool] = yaml.SafeLoader.bool_values
_NULL = "tag:yaml.org,2002:null"
_TEXT = "tag:yaml.org,2002:str"
_MOST_NODES = 100_000
_LONGEST_SHOWN = 60


class Loader(yaml.SafeLoader):
    """YAML 1.1 in which 1e-4 is a number, as in YAML 1.2."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?\d[\d_]*(\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def parse_yaml(text: str, name: str, *, is_file: bool) -> yaml.Node | None:
    """The root of a text, None where it is empty.

    Raises:
        ValueError: It is not YAML, or a few lines stand for very many values.
    """
    try:
        loader = Loader(text)
        loader.name = name if is_file else ""
        root: yaml.Node | None = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if is_file and error.problem_mark else ""
        raise ValueError(f"{name}{line}: not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{name}: not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ValueError(
            f"{name}: not YAML that settings need: brackets are nested too deeply"
        ) from error
    if root is not None and _count_nodes(root, {}) > _MOST_NODES:
        raise ValueError(
            f"{name}: its aliases stand for more than {_MOST_NODES:,} values; write out what is meant"
        )
    return root


def _count_nodes(node: yaml.Node, counted: dict[int, int]) -> int:
    """How many there are with every alias written out; an alias of what it stands in counts as too many."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in counted:
        counted[id(node)] = _MOST_NODES + 1
        inner = (
            node.value
            if isinstance(node, yaml.SequenceNode)
            else [each for pair in node.value for each in pair]
        )
        counted[id(node)] = 1 + sum(_count_nodes(each, counted) for each in inner)
    return counted[id(node)]


def word_node(word: str) -> yaml.ScalarNode:
    """A word of the command line as a node."""
    return yaml.ScalarNode(_NULL if word == "null" else _TEXT, word)


def place_of(node: yaml.Node, key: str) -> str:
    """Where a value stands, as messages begin."""
    return f"{line_of(node)}{key}" if line_of(node) else f"--{key}"


def line_of(node: yaml.Node) -> str:
    """File and line, as messages begin; empty for words of the command line."""
    mark = node.start_mark
    return f"{mark.name}:{mark.line + 1}: " if mark is not None and mark.name else ""


def read_section(
    node: yaml.Node | None, settings_class: Any, prefix: str = "", program: str = ""
) -> Tree:
    """What a mapping gives of a settings class.

    Raises:
        ValueError: It is no mapping, a key is unknown or stands there twice.
    """
    if node is None:
        return {}
    names = sorted(typing.get_type_hints(settings_class))
    if not isinstance(node, yaml.MappingNode):
        examples = ", ".join(names[:3])
        raise ValueError(  # noqa: TRY004
            f"{place_of(node, prefix.rstrip('.') or 'settings')}: found {_shown(node)}, expected keys and values; "
            f"keys are {examples}{' and others' if len(names) > 3 else ''}"
        )
    given: Tree = {}
    for key_node, value in _pairs(node, prefix):
        name, key = str(key_node.value), f"{prefix}{key_node.value}"
        hint = typing.get_type_hints(settings_class).get(name)
        if hint is None and (answer := renamed(settings_class, name, mark=prefix)):
            raise ValueError(f"{line_of(key_node)}{key} {answer}")
        if hint is None:
            raise ValueError(
                f"{line_of(key_node)}unknown key {key}; {_help_with(key, settings_class, program)}"
            )
        section = section_of(hint)
        is_nested = section and isinstance(value, yaml.MappingNode)
        given[name] = read_section(value, section, f"{key}.", program) if is_nested else value
    return given


def _pairs(node: yaml.MappingNode, prefix: str) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """Keys and values, those of a merge (<<) where the mapping does not have them itself."""
    names: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ValueError(  # noqa: TRY004
                f"{line_of(key)}found {_shown(key)} in the place of a key, expected a name"
            )
        if (name := str(key.value)) in names:
            raise ValueError(f"{place_of(key, prefix + name)} stands there twice; leave one out")
        names.add(name)
    Loader("").flatten_mapping(node)
    yield from {str(key.value): (key, value) for key, value in node.value}.values()


def merge(tree: Tree, other: Tree) -> Tree:
    """Both, where the second one wins."""
    merged = dict(tree)
    for name, value in other.items():
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = merge(merged[name], value) if both else value
    return merged


def make(settings_class: Any, tree: Tree, prefix: str = "", base: Any = None) -> Any:
    """An object of a settings class.

    Raises:
        ValueError: A value of another type than the field's, one that is missing or one that the
            class refuses.
    """
    hints, values = (
        typing.get_type_hints(settings_class),
        dict(vars(base)) if base is not None else {},
    )
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            values[name] = make(
                section_of(hints[name]), value, f"{key}.", _default_of(settings_class, name)
            )
        else:
            values[name] = convert(value, hints[name], key)
    try:
        return settings_class(**values)
    except ValueError as error:
        raise ValueError(_with_place(str(error), tree, prefix)) from error


def missing_fields(settings_class: Any, tree: Tree) -> list[str]:
    """Names of the fields that have no default and were not given."""
    return [
        field.name
        for field in dataclasses.fields(settings_class)
        if is_needed(field) and field.name not in tree
    ]


def is_needed(field: "dataclasses.Field[Any]") -> bool:
    """Whether the field has no default."""
    return field.default is field.default_factory is dataclasses.MISSING


def _default_of(settings_class: Any, name: str) -> Any:
    field = next(field for field in dataclasses.fields(settings_class) if field.name == name)
    return field.default_factory() if callable(field.default_factory) else None


def _with_place(message: str, tree: Tree, prefix: str) -> str:
    """The message of a settings class, after the file and line of the key or item that it begins with."""
    named = re.match(r"(\w+)(?:\[(\d+)\])?", message.removeprefix(prefix))
    node = tree.get(named[1]) if named else None
    if named and named[2] and isinstance(node, yaml.SequenceNode):
        node = node.value[int(named[2])]
    return f"{line_of(node)}{message}" if isinstance(node, yaml.Node) else message


def convert(node: yaml.Node, hint: Any, key: str) -> Any:
    """A value of a field's type.

    Raises:
        ValueError: Names the place, what was found and what is allowed.
    """
    kinds = _alternatives(hint)
    if types.NoneType in kinds and node.tag == _NULL:
        return None
    kind = next(each for each in kinds if each is not types.NoneType)
    try:
        return _convert_kind(node, kind, key)
    except _UnfitError:
        raise ValueError(
            f"{place_of(node, key)}: found {_shown(node)}, expected {describe_type(hint)}"
        ) from None


class _UnfitError(Exception):
    """A node is not of the type."""


def _convert_kind(node: yaml.Node, kind: Any, key: str) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        if not isinstance(node, yaml.SequenceNode):
            raise _UnfitError
        is_words = not line_of(node) and not dataclasses.is_dataclass(inner[0])
        keys = (key if is_words else f"{key}[{index}]" for index in range(len(node.value)))
        return [
            convert(each, inner[0], each_key)
            for each, each_key in zip(node.value, keys, strict=True)
        ]
    if origin is dict:
        return _plain_mapping(node, key)
    if dataclasses.is_dataclass(kind):
        return _make_item(node, kind, key)
    is_word = kind is str and not line_of(node)  # such as --text null
    if not isinstance(node, yaml.ScalarNode) or (node.tag == _NULL and not is_word):
        raise _UnfitError
    choices = inner if origin is Literal else BOOLEANS if kind is bool else None
    if choices is None:
        return _convert_word(node.value, kind)
    found = {str(choice): choice for choice in choices}
    word = node.value.lower() if kind is bool else node.value
    if word not in found:
        raise _UnfitError
    return BOOLEANS[word] if kind is bool else found[word]


def _convert_word(word: str, kind: type) -> Any:
    try:
        value = kind(word)
    except ValueError:
        raise _UnfitError from None
    if isinstance(value, float) and not math.isfinite(value):
        raise _UnfitError
    return value


def _plain_mapping(node: yaml.Node, key: str) -> Any:
    if not isinstance(node, yaml.MappingNode):
        raise _UnfitError
    list(_pairs(node, f"{key}."))
    try:
        return {str(name): value for name, value in Loader("").construct_document(node).items()}
    except yaml.MarkedYAMLError as error:
        raise ValueError(f"{place_of(node, key)}: {error.problem}") from error


def _make_item(node: yaml.Node, kind: Any, key: str) -> Any:
    """An item of a list of settings, or a section that is not written as a mapping, which read_section refuses."""
    tree = read_section(node, kind, f"{key}.")
    if missing := missing_fields(kind, tree):
        raise ValueError(f"{place_of(node, key)}: {', '.join(missing)} missing; each item needs it")
    try:
        return make(kind, tree, f"{key}.")
    except ValueError as error:
        message = str(error)
        has_place = message.startswith("--") or re.match(r".+:\d+: ", message)
        raise ValueError(message if has_place else f"{place_of(node, key)}: {message}") from error


def _alternatives(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def section_of(hint: Any) -> Any:
    """The settings class that a field nests, None where it is a plain value or a list."""
    return next((kind for kind in _alternatives(hint) if dataclasses.is_dataclass(kind)), None)


def item_of(hint: Any) -> Any:
    """What a field's list consists of, None where it is no list."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is list else None


def choices_of(hint: Any) -> list[str]:
    """The values that a field may have, as they are written; none where any of its type will do."""
    kinds = [kind for kind in _alternatives(hint) if typing.get_origin(kind) is Literal]
    return [str(choice) for kind in kinds for choice in typing.get_args(kind)]


def describe_type(hint: Any) -> str:
    """A type in words."""
    kinds = _alternatives(hint)
    kind = next(each for each in kinds if each is not types.NoneType)
    or_null = " or null" if types.NoneType in kinds else ""
    if choices := choices_of(kind):
        return f"one of {', '.join(choices)}{or_null}"
    if inner := item_of(kind):
        return f"a list, such as {_example(inner)}{or_null}"
    if typing.get_origin(kind) is dict or dataclasses.is_dataclass(kind):
        return f"keys and values{or_null}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return f"{words.get(kind, 'a value')}{or_null}"


def _example(kind: Any) -> str:
    if dataclasses.is_dataclass(kind):
        return (
            "[{" + ", ".join(f"{field.name}: ..." for field in dataclasses.fields(kind)[:2]) + "}]"
        )
    return {int: "[1, 2]", float: "[0.1, 0.2]"}.get(kind, "[a, b]")


def _shown(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        return "keys and values" if isinstance(node, yaml.MappingNode) else "a list"
    if node.tag == _NULL:
        return "null" if node.value else "nothing"
    shown = node.value if len(node.value) <= _LONGEST_SHOWN else f"{node.value[:_LONGEST_SHOWN]}..."
    return repr(shown)


def _help_with(key: str, settings_class: Any, program: str) -> str:
    """What stands after an unknown key of a file: the nearest, or where all are listed."""
    level, _, name = key.rpartition(".")
    names = list(typing.get_type_hints(settings_class))
    nearest = suggest(name, names if level else known_keys(settings_class))
    if nearest:
        return (
            f"did you mean {' or '.join(f'{level}.{each}' if level else each for each in nearest)}?"
        )
    return f"the keys there are {', '.join(names)}" if level else f"{program} --help lists the keys"


def find_hint(settings_class: Any, key: str) -> Any:
    """The type of the field that a dotted key names, in the items of lists too; None where there is none."""
    name, _, rest = key.partition(".")
    hint = typing.get_type_hints(settings_class).get(name)
    if not rest or hint is None:
        return hint
    if typing.get_origin(hint) is dict:
        return typing.get_args(hint)[1]
    inner = section_of(item_of(hint) or hint)
    return find_hint(inner, rest) if inner else None


def renamed(settings_class: Any, key: str, mark: str = "") -> str | None:
    """What is said after a key that the class lacks and other programs or versions have; None of any other key.

    Args:
        settings_class: The class.
        key: The key, with its levels.
        mark: What stands before a key in the message: "--" on the command line.
    """
    level, dot, name = key.replace("-", "_").rpartition(".")
    for names, when in ((OLD_NAMES, "now"), (OTHER_PROGRAMS, "here")):
        for new in names.get(name, "").split():
            if find_hint(settings_class, f"{level}{dot}{new}") is not None:
                return f"is {mark}{level}{dot}{new} {when}"
    return NOT_NEEDED.get(name)


def known_keys(settings_class: Any, prefix: str = "") -> list[str]:
    """Every key of a settings class, those of nested classes and of the items of lists after a dot."""
    keys: list[str] = []
    for name, hint in typing.get_type_hints(settings_class).items():
        inner = section_of(item_of(hint) or hint)
        keys += known_keys(inner, f"{prefix}{name}.") if inner else [f"{prefix}{name}"]
    return keys


def suggest(wrong: str, known: Iterable[str]) -> list[str]:
    """At most three names that may be meant: of that last part, with that beginning, or spelled nearly so."""
    wrong, names = wrong.lower().replace("-", "_"), list(known)
    same = [name for name in names if wrong in (name.replace("-", "_"), name.rpartition(".")[2])]
    begun = [name for name in names if len(wrong) > 1 and name.startswith(wrong)]
    near = difflib.get_close_matches(wrong, names)
    by_last_part = {name.rpartition(".")[2]: name for name in reversed(names)}
    nearly = [by_last_part[part] for part in difflib.get_close_matches(wrong, by_last_part)]
    return next((found for found in (same, begun, near, nearly) if found), [])[:3]
