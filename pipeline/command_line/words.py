"""Reads the words of a command line: flags, files of `--config`, and values without a flag.

A field whose value may be given without a flag is called positional, such as DATA in `verify DATA`.
"""

import dataclasses
import pkgutil
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pipeline.command_line.hints import (
    alternatives,
    describe_type,
    find_hint,
    hints_of,
    is_mapping,
    item_of,
    section_of,
)
from pipeline.command_line.names import answer_unknown, suggest
from pipeline.command_line.values import (
    BOOLEANS,
    Given,
    make_settings,
    missing_fields,
    parse_yaml,
    read_mapping,
    read_value,
    word_node,
)

_RECIPES = Path(__file__).parent / "recipes"
"""Folder of the recipes: a link to configs/ in a checkout, a copy of it in a wheel."""


def parse_words(
    program: str,
    settings_class: Any,
    positionals: Sequence[str],
    words: Sequence[str],
    takers: Callable[[str], Sequence[str]] = lambda _: (),
) -> Any:
    """Reads an object of a settings class from words and from the files that they name.

    A flag wins over a file, wherever it is on the command line. A later file wins over an earlier
    one.

    Args:
        program: The program and the command, for messages.
        settings_class: The class.
        positionals: Names of the fields that are given without a flag, in order.
        words: The words after the command.
        takers: A function that returns the names of the other commands that have a given flag, for
            the message about an unknown flag.

    Raises:
        ValueError: There are mistakes in the words and files, each a line of the message. If there
            are none, fields are missing, or the class refuses a value.
    """
    reader = _Words(settings_class, positionals, words, takers)
    reader.read()
    if reader.mistakes:
        raise ValueError("\n".join(reader.mistakes))
    _check_code(settings_class, reader.in_files, reader.flags)

    given = dict(reader.in_files)
    for key, value in reader.flags.items():
        _put(given, key, value)

    # A field with `fills` names a file of another format, whose settings are taken over here.
    for field in dataclasses.fields(settings_class):
        fill = field.metadata.get("fills")
        path = given.get(field.name, Given(None, "")).value
        if fill and path:
            given |= pkgutil.resolve_name(fill)(path, reader.in_files, reader.flags)

    if missing := missing_fields(settings_class, given):
        names = ", ".join(_as_given(name, settings_class, positionals) for name in missing)
        raise ValueError(f"missing: {names}; {program} --help says what it takes")
    return make_settings(settings_class, given)


def _check_code(
    settings_class: Any, in_files: Mapping[str, Given], flags: Mapping[str, Given]
) -> None:
    """Checks that no file names code that would run, unless the flag --allow_code permits it.

    Someone who uses another person's file of settings may not expect code in it. Code that a flag
    names is always allowed.

    Args:
        settings_class: The class. A field whose values are code has `is_code` in its metadata.
        in_files: The values that files give, by dotted key.
        flags: The values that flags give, by dotted key.

    Raises:
        ValueError: A file names code.
    """
    if "allow_code" in flags and flags["allow_code"].value:
        return
    for field in dataclasses.fields(settings_class):
        in_file = in_files.get(field.name, Given([], "")) if field.name not in flags else None
        if in_file and in_file.value and field.metadata.get("is_code"):
            code = f"{field.name} names code that would run, {', '.join(in_file.value)}"
            raise ValueError(f"{in_file.where}{code}; if you trust it give --allow_code true")


def _as_given(name: str, settings_class: Any, positionals: Sequence[str]) -> str:
    """Returns a missing field in the form in which the user has to give it, for a message.

    It is NAME for a positional field, and --NAME for any other. A list of sections can only be
    given in a --config file.
    """
    if section_of(item_of(hints_of(settings_class)[name])):
        return f"{name} of a --config file, such as bert-base"
    return name.upper() if name in positionals else f"--{name}"


def _put(given: dict[str, Given], key: str, value: Given) -> None:
    """Sets the value of a key. If the key is a list, the items of an earlier list are removed.

    Args:
        given: The values by dotted keys, which are changed.
        key: The dotted key.
        value: The value.
    """
    for old in [old for old in given if old.startswith(f"{key}[")]:
        del given[old]
    given[key] = value


class _Words:
    """Reads the words of a command line, and collects the given values and all mistakes.

    Attributes:
        settings_class: The class whose fields are set.
        positionals: Names of the fields that are given without a flag.
        rest: The words that have not been read yet.
        takers: A function that returns the other commands that have a given flag.
        in_files: The values that files give, by dotted key.
        flags: The values that flags and positional words give, by dotted key.
        mistakes: One message for each mistake so far.
    """

    def __init__(
        self,
        settings: Any,
        positionals: Sequence[str],
        words: Sequence[str],
        takers: Callable[[str], Sequence[str]],
    ) -> None:
        self.takers = takers
        self.settings_class = settings
        self.positionals = positionals
        self.rest = list(words)
        self.in_files: dict[str, Given] = {}
        self.flags: dict[str, Given] = {}
        self.mistakes: list[str] = []

    def read(self) -> None:
        """Reads all words into `in_files`, `flags` and `mistakes`."""
        loose: list[str] = []
        while self.rest:
            word = self.rest.pop(0)
            try:
                if is_flag(word):
                    self._read_flag(*word.partition("="))
                else:
                    loose.append(word)
                if not self.rest:
                    self._take_positionals(loose)
            except (ValueError, FileNotFoundError) as error:
                self.mistakes.append(str(error))

    def _read_flag(self, name: str, equals: str, value: str) -> None:
        """Reads a flag with its values, or a file of --config.

        Args:
            name: The flag with its hyphens.
            equals: "=" if the value is in the same word, as in --name=value; otherwise empty.
            value: The value in the same word.

        Raises:
            ValueError: The flag is unknown or is given twice, or its value is wrong or missing.
            FileNotFoundError: There is no such file or recipe.
        """
        key = name.lstrip("-")
        values = [value] if equals else []
        if name == "--config":
            file = value if equals else self._next(name, "the name of a YAML file")
            path = find_config(file, self.settings_class)
            root = parse_yaml(path.read_bytes(), str(path), is_file=True)
            for file_key, file_value in read_mapping(root, self.settings_class) if root else ():
                _put(self.in_files, file_key, file_value)
            return

        hint = find_hint(self.settings_class, key) if name.startswith("--") else None
        if hint is None:
            list(self._until_flag())  # its values would be mistakes of their own
            mark = name[: -len(key)]
            raise ValueError(answer_unknown(key, self.settings_class, mark, takers=self.takers))
        if key in self.flags and item_of(hint):
            list(self._until_flag())
            raise ValueError(f"{name} is given twice; give all its values after one: {name} A B")
        self.flags |= read_value(self._node(name, hint, values), hint, key)

    def _node(self, name: str, hint: Any, values: list[str]) -> yaml.Node:
        """Returns the value of a flag as a YAML node.

        Args:
            name: The flag with its hyphens, for messages.
            hint: The type of the flag's field.
            values: The words of the value. If it is empty, they are taken from `rest`.

        Raises:
            ValueError: The value is missing, or is not YAML.
        """
        inner = item_of(hint)
        if inner and not section_of(inner):
            values = values or [self._next(name, describe_type(inner)), *self._until_flag()]
            if values == ["null"] and types.NoneType in alternatives(hint):
                return word_node("null")
            nodes = [word_node(value) for value in values]
            return yaml.SequenceNode("tag:yaml.org,2002:seq", nodes)

        next_word = self.rest[0].lower() if self.rest else ""
        if hint in (bool, bool | None) and not values and next_word not in {*BOOLEANS, "null"}:
            return word_node("true")

        word = values[0] if values else self._next(name, describe_type(hint))
        if inner or section_of(hint) or hint is Any or is_mapping(hint):
            return parse_yaml(word, name, is_file=False) or word_node(word)
        return word_node(word)

    def _next(self, name: str, expected: str) -> str:
        """Takes the next word from `rest`, as the value of a flag.

        Args:
            name: The flag with its hyphens, for the message.
            expected: What kind of value the flag has, for the message.

        Raises:
            ValueError: There is no next word, or it is a flag.
        """
        if not self.rest or is_flag(self.rest[0]):
            raise ValueError(f"{name}: a value is missing, expected {expected}")
        return self.rest.pop(0)

    def _until_flag(self) -> Iterator[str]:
        """Yields the words before the next flag, and takes each from `rest` as it is yielded."""
        while self.rest and not is_flag(self.rest[0]):
            yield self.rest.pop(0)

    def _take_positionals(self, loose: list[str]) -> None:
        """Assigns the words that belong to no flag to the positional fields, in their order.

        Each field takes one word. A field that is a list takes all words that are left.

        Args:
            loose: The words that belong to no flag, in their order.

        Raises:
            ValueError: A value is wrong, or words are left over.
        """
        for name in self.positionals if loose else ():
            hint = find_hint(self.settings_class, name)
            taken, loose = (loose, []) if item_of(hint) else (loose[:1], loose[1:])
            if taken:
                self.flags |= read_value(self._node(f"--{name}", hint, taken), hint, name)
        if loose:
            takes = " ".join(map(str.upper, self.positionals)) or "only flags"
            shown = loose[0].partition("{")[0]  # text in braces may be storage options: secrets
            cure = f"the command takes {takes}, and every other value after its flag"
            raise ValueError(f"unexpected word {shown!r}; {cure}")


def recipes() -> dict[str, Path]:
    """Returns the paths of all recipes by their names, such as bert-large."""
    return {path.stem: path for path in sorted(_RECIPES.glob("*/*.yaml"))}


def find_config(name: str, settings_class: Any) -> Path:
    """Returns the path of the file that a user names after `--config`.

    If there is no file of this name, it is the name of a recipe, which is a file of configs/.

    Args:
        name: A path, or the name of a recipe: bert-large or configs/pretrain/bert-large.yaml.
        settings_class: The settings class of the command. Only recipes for it are found.

    Raises:
        FileNotFoundError: There is no such file or recipe, or the recipe is another command's.
    """
    known = recipes()
    in_recipes = _RECIPES / name.removeprefix("configs/")
    if Path(name).is_file():
        return Path(name)
    recipe_path = known.get(name) or (in_recipes in known.values() and in_recipes)
    of_command = [recipe for recipe, path in known.items() if _is_recipe_of(path, settings_class)]
    if recipe_path and (recipe_path.stem in of_command or not of_command):
        return recipe_path

    if not recipe_path and ("." in name or "/" in name):
        raise FileNotFoundError(f"no configuration file {name}")
    near = suggest(name, of_command)
    cure = f"did you mean {' or '.join(near)}?" if near else f"recipes are {', '.join(of_command)}"
    if recipe_path:
        raise FileNotFoundError(f"the recipe {name} is another command's; {cure}")
    if not of_command:
        cure = "this command has no recipes; give a file"
    raise FileNotFoundError(f"no configuration file or recipe {name}; {cure}")


def _is_recipe_of(path: Path, settings_class: Any) -> bool:
    """Returns whether a recipe is for a settings class: all its outermost keys are fields of it."""
    root = yaml.compose(path.read_bytes(), Loader=yaml.SafeLoader)
    keys = [key.value for key, _ in root.value] if isinstance(root, yaml.MappingNode) else []
    return bool(keys) and set(keys) <= hints_of(settings_class).keys()


def is_flag(word: str) -> bool:
    """Returns whether a word has the form of a flag: one or two hyphens and a letter, unlike -1."""
    return re.fullmatch(r"--?[A-Za-z][\w.-]*(=.*)?", word, re.DOTALL) is not None
