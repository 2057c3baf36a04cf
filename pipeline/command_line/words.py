"""Words of a command line: flags, files of `--config`, what stands without a flag."""

import dataclasses
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pipeline.command_line.hints import (
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
    make,
    missing_fields,
    parse_yaml,
    read_mapping,
    read_value,
    word_node,
)

_RECIPES = Path(__file__).parent / "recipes"
"""A link to configs/ in a checkout, a copy of it in a wheel."""


def parse_words(
    program: str,
    settings_class: Any,
    positionals: Sequence[str],
    words: Sequence[str],
    takers: Callable[[str], Sequence[str]] = lambda _: (),
) -> Any:
    """The settings that words and the files they name give; flags win wherever they stand.

    A ValueError has a line for every mistake, or says what is missing, or what the class refuses.
    """
    reader = _Words(settings_class, positionals, words, takers)
    reader.read()
    if reader.mistakes:
        raise ValueError("\n".join(reader.mistakes))
    _check_code(settings_class, reader.in_files, reader.flags)
    given = dict(reader.in_files)
    for key, value in reader.flags.items():
        _put(given, key, value)
    for field in dataclasses.fields(settings_class):
        if (fill := field.metadata.get("fills")) and given.get(field.name, Given(None, "")).value:
            path = given[field.name].value
            given |= pkgutil.resolve_name(fill)(path, reader.in_files, reader.flags)
    if missing := missing_fields(settings_class, given):
        names = ", ".join(_as_given(name, settings_class, positionals) for name in missing)
        raise ValueError(f"missing: {names}; {program} --help says what it takes")
    return make(settings_class, given)


def _check_code(
    settings_class: Any, in_files: Mapping[str, Given], flags: Mapping[str, Given]
) -> None:
    """Refuses code that a file alone names: who takes another's settings may not expect it."""
    if "allow_code" in flags and flags["allow_code"].value:
        return
    for field in dataclasses.fields(settings_class):
        found = in_files.get(field.name, Given([], "")) if field.name not in flags else None
        if found and found.value and field.metadata.get("is_code"):
            code = f"{field.name} names code that would run, {', '.join(found.value)}"
            raise ValueError(f"{found.where}{code}; if you trust it give --allow_code true")


def _as_given(name: str, settings_class: Any, positionals: Sequence[str]) -> str:
    """How a field is given: without a flag, in a file, or by a flag."""
    if section_of(item_of(hints_of(settings_class)[name])):
        return f"{name} of a --config file, such as bert-base"
    return name.upper() if name in positionals else f"--{name}"


def _put(given: dict[str, Given], key: str, value: Given) -> None:
    """Adds a value; a list replaces one that was given before, with all its items."""
    for old in [old for old in given if old.startswith(f"{key}[")]:
        del given[old]
    given[key] = value


class _Words:
    """A reader of words, from the first to the last, that goes on after a mistake."""

    def __init__(
        self,
        settings: Any,
        positionals: Sequence[str],
        words: Sequence[str],
        takers: Callable[[str], Sequence[str]],
    ) -> None:
        self.takers = takers
        self.settings_class, self.positionals, self.rest = settings, positionals, list(words)
        self.in_files: dict[str, Given] = {}
        self.flags: dict[str, Given] = {}
        self.mistakes: list[str] = []

    def read(self) -> None:
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
        key, values = name.lstrip("-"), [value] if equals else []
        if name == "--config":
            file = value if equals else self._next(name, "the name of a YAML file")
            path = find_config(file, self.settings_class)
            root = parse_yaml(path.read_bytes(), str(path), is_file=True)
            for each, found in read_mapping(root, self.settings_class) if root else ():
                _put(self.in_files, each, found)
            return
        hint = find_hint(self.settings_class, key) if name.startswith("--") else None
        if hint is None:
            list(self._until_flag())
            mark = name[: -len(key)]
            raise ValueError(answer_unknown(key, self.settings_class, mark, takers=self.takers))
        if key in self.flags and item_of(hint):
            list(self._until_flag())
            raise ValueError(f"{name} is given twice; give all its values after one: {name} A B")
        self.flags |= read_value(self._node(name, hint, values), hint, key)

    def _node(self, name: str, hint: Any, values: list[str]) -> yaml.Node:
        """The value of a flag: that after its equals sign, or words that follow."""
        inner = item_of(hint)
        if inner and not section_of(inner):
            values = values or [self._next(name, describe_type(inner)), *self._until_flag()]
            nodes = [word_node(value) for value in values]
            return yaml.SequenceNode("tag:yaml.org,2002:seq", nodes)
        follows = self.rest[0].lower() if self.rest else ""
        if hint in (bool, bool | None) and not values and follows not in {*BOOLEANS, "null"}:
            return word_node("true")
        word = values[0] if values else self._next(name, describe_type(hint))
        if inner or section_of(hint) or hint is Any or is_mapping(hint):
            return parse_yaml(word, name, is_file=False) or word_node(word)
        return word_node(word)

    def _next(self, name: str, expected: str) -> str:
        if not self.rest or is_flag(self.rest[0]):
            raise ValueError(f"{name}: a value is missing, expected {expected}")
        return self.rest.pop(0)

    def _until_flag(self) -> Iterator[str]:
        while self.rest and not is_flag(self.rest[0]):
            yield self.rest.pop(0)

    def _take_positionals(self, loose: list[str]) -> None:
        """Words without a flag for the fields that stand so; a list takes all that are left."""
        for name in self.positionals if loose else ():
            hint = find_hint(self.settings_class, name)
            taken, loose = (loose, []) if item_of(hint) else (loose[:1], loose[1:])
            if taken:
                self.flags |= read_value(self._node(f"--{name}", hint, taken), hint, name)
        if loose:
            takes = " ".join(map(str.upper, self.positionals)) or "only flags"
            shown = loose[0].partition("{")[0]  # what stands in braces may be storage options
            cure = f"the command takes {takes}, and every other value after its flag"
            raise ValueError(f"unexpected word {shown!r}; {cure}")


def recipes() -> dict[str, Path]:
    """The files of configs/ by their names, such as bert-large."""
    return {path.stem: path for path in sorted(_RECIPES.glob("*/*.yaml"))}


def find_config(name: str, settings_class: Any) -> Path:
    """Returns the path of a configuration: a file on disk, or else a recipe of configs/.

    A recipe is named as bert-large or configs/pretrain/bert-large.yaml.

    Raises:
        FileNotFoundError: There is no such file or recipe, or the recipe is another command's.
    """
    known = recipes()
    in_recipes = _RECIPES / name.removeprefix("configs/")
    if Path(name).is_file():
        return Path(name)
    found = known.get(name) or (in_recipes in known.values() and in_recipes)
    own = [each for each, path in known.items() if _is_recipe_of(path, settings_class)]
    if found and (found.stem in own or not own):
        return found
    if not found and ("." in name or "/" in name):
        raise FileNotFoundError(f"no configuration file {name}")
    near = suggest(name, own)
    cure = f"did you mean {' or '.join(near)}?" if near else f"recipes are {', '.join(own)}"
    if found:
        raise FileNotFoundError(f"the recipe {name} is another command's; {cure}")
    if not own:
        cure = "this command has no recipes; give a file"
    raise FileNotFoundError(f"no configuration file or recipe {name}; {cure}")


def _is_recipe_of(path: Path, settings_class: Any) -> bool:
    """Returns whether every key that a recipe sets is a setting of this class."""
    root = yaml.compose(path.read_bytes(), Loader=yaml.SafeLoader)
    keys = [key.value for key, _ in root.value] if isinstance(root, yaml.MappingNode) else []
    return bool(keys) and set(keys) <= hints_of(settings_class).keys()


def is_flag(word: str) -> bool:
    """Whether a word is a flag, and not a value such as -1, or a text that begins with a hyphen."""
    return re.fullmatch(r"--?[A-Za-z][\w.-]*(=.*)?", word, re.DOTALL) is not None
