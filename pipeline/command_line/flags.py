"""Words of a command line: flags with their values, files of `--config`, and what is given without a flag."""

import re
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from pipeline.command_line.recipes import find_config
from pipeline.command_line.values import (
    BOOLEANS,
    Tree,
    describe_type,
    find_hint,
    item_of,
    known_keys,
    make,
    merge,
    missing_fields,
    parse_yaml,
    read_section,
    renamed,
    section_of,
    suggest,
    word_node,
)

MAX_FILE_CHARACTERS = 2**20
"""The longest file of --config. YAML takes seconds to parse so many, and minutes for what is given by mistake."""


def parse_words(
    program: str, settings_class: Any, positionals: Sequence[str], words: Sequence[str]
) -> Any:
    """The settings that the words and the files that they name give; flags win over files wherever they stand.

    Raises:
        ValueError: An unknown flag or key, a value of a wrong type or one that is missing.
        FileNotFoundError: A file of --config does not exist.
    """
    files, flags, loose = _Words(program, settings_class, words).read()
    tree: Tree = {}
    for file in files:
        tree = merge(tree, _read_file(file, settings_class, program))
    for name, value in _take_positionals(settings_class, positionals, loose):
        flags[name] = value
    for key, node in flags.items():
        tree = merge(tree, _branch(key, node, tree, settings_class, program))
    if missing := missing_fields(settings_class, tree):
        names = ", ".join(_as_given(name, settings_class, positionals) for name in missing)
        raise ValueError(f"missing: {names}; {program} --help says what it takes")
    return make(settings_class, tree)


def _as_given(name: str, settings_class: Any, positionals: Sequence[str]) -> str:
    """How a field is given: without a flag, in a file, or by a flag."""
    if section_of(item_of(typing.get_type_hints(settings_class)[name])):
        return f"{name} of a --config file"
    return name.upper() if name in positionals else f"--{name}"


def _read_file(name: str, settings_class: Any, program: str) -> Tree:
    path = str(find_config(name))
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(MAX_FILE_CHARACTERS + 1)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: found bytes that are not UTF-8 text, expected YAML") from error
    if len(text) > MAX_FILE_CHARACTERS:
        raise ValueError(
            f"{path}: found more than {MAX_FILE_CHARACTERS:,} characters, expected a file of settings"
        )
    return read_section(parse_yaml(text, path, is_file=True), settings_class, program=program)


class _Words:
    """A reader of words, from the first to the last."""

    def __init__(self, program: str, settings_class: Any, words: Sequence[str]) -> None:
        self.program = program
        self.settings_class = settings_class
        self.rest = list(words)

    def read(self) -> tuple[list[str], dict[str, yaml.Node], list[str]]:
        """Files of --config, nodes by key, and words without a flag."""
        files: list[str] = []
        flags: dict[str, yaml.Node] = {}
        loose: list[str] = []
        while self.rest:
            word = self.rest.pop(0)
            if not is_flag(word):
                loose.append(word)
                continue
            name, has_value, value = word.partition("=")
            key = name.lstrip("-")
            if name == "--config":
                files.append(value if has_value else self._next(name, "the name of a YAML file"))
            else:
                hint = self._hint_of(name)
                if key in flags and item_of(hint):
                    raise ValueError(
                        f"{name} is given twice; give all its values after one: {name} A B"
                    )
                flags[key] = self._node(name, hint, [value] if has_value else None)
        return files, flags, loose

    def _next(self, name: str, expected: str) -> str:
        if not self.rest or is_flag(self.rest[0]):
            raise ValueError(f"{name}: a value is missing, expected {expected}")
        return self.rest.pop(0)

    def _node(self, name: str, hint: Any, values: list[str] | None) -> yaml.Node:
        """The value of a flag: that after its equals sign, or words that follow."""
        inner = item_of(hint)
        if inner and not section_of(inner):
            values = values or [self._next(name, describe_type(inner)), *self._until_flag()]
            return yaml.SequenceNode(
                "tag:yaml.org,2002:seq", [word_node(value) for value in values]
            )
        is_boolean = hint is bool or hint == bool | None
        if (
            is_boolean
            and not values
            and not (self.rest and self.rest[0].lower() in {*BOOLEANS, "null"})
        ):
            return word_node("true")
        [value] = values or [self._next(name, describe_type(hint))]
        is_composed = inner or section_of(hint) or hint is Any or typing.get_origin(hint) is dict
        parsed = parse_yaml(value, name, is_file=False) if is_composed else None
        return word_node(value) if parsed is None else parsed

    def _until_flag(self) -> Iterator[str]:
        while self.rest and not is_flag(self.rest[0]):
            yield self.rest.pop(0)

    def _hint_of(self, name: str) -> Any:
        if name.startswith("--") and (hint := find_hint(self.settings_class, name[2:])) is not None:
            return hint
        if answer := renamed(self.settings_class, name.lstrip("-"), mark="--"):
            raise ValueError(f"{name} {answer}")
        raise ValueError(f"unknown flag {name}; {self._help_with(name.lstrip('-'))}")

    def _help_with(self, name: str) -> str:
        """What stands after an unknown flag: the nearest, the list whose items have that key, or where all are."""
        flags = flag_keys(self.settings_class)
        of_items = suggest(
            name, (key for key in known_keys(self.settings_class) if key not in flags)
        )
        nearest = suggest(name, flags)
        is_flag_there = any(key.endswith(f".{name}") for key in nearest)
        if of_items and (not nearest or (of_items[0].endswith(f".{name}") and not is_flag_there)):
            listed, _, key = of_items[0].rpartition(".")
            return f"{key} belongs to each of {listed}, in the --config file"
        if nearest:
            return f"did you mean {' or '.join(f'--{key}' for key in nearest)}?"
        return f"{self.program} --help lists the flags"


def is_flag(word: str) -> bool:
    """Whether a word is a flag, and not a value such as -1, -1,-2 or a text that begins with a hyphen."""
    return re.fullmatch(r"--?[A-Za-z][\w.-]*(=.*)?", word, re.DOTALL) is not None


def flag_keys(settings_class: Any) -> list[str]:
    """Every key that is a flag: those of the items of lists are not."""
    hints = typing.get_type_hints(settings_class)
    lists = [name for name, hint in hints.items() if section_of(item_of(hint))]
    return [
        "config",
        *lists,
        *(key for key in known_keys(settings_class) if key.partition(".")[0] not in lists),
    ]


def _branch(key: str, node: yaml.Node, tree: Tree, settings_class: Any, program: str) -> Tree:
    """A flag's value at its place in the tree of what is given."""
    name, _, rest = key.partition(".")
    hint = typing.get_type_hints(settings_class)[name]
    section = section_of(hint)
    if rest and section:
        inner = tree.get(name, {})
        return {
            name: _branch(rest, node, inner if isinstance(inner, dict) else {}, section, program)
        }
    if rest:
        return {name: _put(name, rest, node, tree.get(name), settings_class)}
    return {name: read_section(node, section, f"{key}.", program) if section else node}


def _put(name: str, rest: str, node: yaml.Node, old: Any, settings_class: Any) -> yaml.Node:
    """A mapping, or a list with one mapping in it, with one of its values replaced."""
    if typing.get_origin(typing.get_type_hints(settings_class)[name]) is dict:
        return _with_value(old, rest, node)
    items = old.value if isinstance(old, yaml.SequenceNode) else []
    if len(items) != 1:
        has_list = item_of(typing.get_type_hints(settings_class).get(rest)) is not None
        by_flag = f"give --{rest} A B: one value for all, or one for each"
        way = by_flag if has_list else f"write {rest} in each of {name} in the --config file"
        raise ValueError(f"--{name}.{rest} names one of {name}, and there are {len(items)}; {way}")
    return yaml.SequenceNode(
        old.tag, [_with_value(items[0], rest, node)], old.start_mark, old.end_mark
    )


def _with_value(old: Any, name: str, node: yaml.Node) -> yaml.MappingNode:
    pairs = old.value if isinstance(old, yaml.MappingNode) else []
    kept = [(key, value) for key, value in pairs if key.value != name]
    marks = (old.start_mark, old.end_mark) if old is not None else (None, None)
    return yaml.MappingNode("tag:yaml.org,2002:map", [*kept, (word_node(name), node)], *marks)


def _take_positionals(
    settings_class: Any, positionals: Sequence[str], loose: Sequence[str]
) -> Iterator[tuple[str, yaml.Node]]:
    """Words without a flag for the fields that stand so; a field that is a list takes all that are left."""
    rest = list(loose)
    for name in positionals:
        is_list = item_of(typing.get_type_hints(settings_class)[name])
        if rest and is_list:
            yield (
                name,
                yaml.SequenceNode("tag:yaml.org,2002:seq", [word_node(word) for word in rest]),
            )
            rest = []
        elif rest:
            yield name, word_node(rest.pop(0))
    if rest:
        takes = " ".join(map(str.upper, positionals)) or "only flags"
        raise ValueError(
            f"unexpected word {rest[0]!r}; the command takes {takes}, and every other value after its flag"
        )
