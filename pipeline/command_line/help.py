"""Writes the page that `--help` prints of a command, from the docstring of its settings class.

The docstring has sections, such as "Input:" or "Attributes:". Each is a group of flags on the page:
a heading, and under it each field with its text.
"""

import dataclasses
import inspect
import re
import shutil
import textwrap
import typing
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Literal

from pipeline.command_line.hints import choices_of, hints_of, is_needed, item_of, section_of

_INDENT = 24
"""The column at which the texts of flags begin."""
_SECTION = re.compile(r"^([A-Z][^\n]*):\n(?= {4})", re.MULTILINE)
_FIELD = re.compile(r"^ {4}(\w+): ", re.MULTILINE)
ANY_FLAGS = "Attributes"
"""Heading of the section in a docstring that does not divide its fields into groups."""
_NO_BREAK = "\N{NO-BREAK SPACE}"
"""Keeps a default on the line of the word before it while lines are wrapped."""
_CONFIG = (
    "YAML file of settings that differ from the defaults, or a recipe's name. Flags win over it."
)


def render_help(
    program: str,
    settings_class: Any,
    positionals: Sequence[str] = (),
    unused: Sequence[str] = (),
    description: str = "",
) -> str:
    """Returns the text of `--help` for a command, as wide as the terminal but at most 100 columns.

    Args:
        program: The program and the command, such as "python -m pipeline build".
        settings_class: The dataclass of the command's settings.
        positionals: Names of the fields that are given without a flag.
        unused: Names of the fields that are left out of the text.
        description: What the command does, in place of the beginning of the class's docstring.
    """
    width = min(100, shutil.get_terminal_size().columns)
    hints = hints_of(settings_class)
    required = list[str]()
    usage = ["usage:", program]
    for name in positionals:
        usage.append(f"{name.upper()} ..." if item_of(hints[name]) else name.upper())
        required += _row(name.upper(), field_help(settings_class, name), width)

    fields = [field for field in dataclasses.fields(settings_class) if is_needed(field)]
    needed = [field.name for field in fields if field.name not in positionals]
    for name in needed:
        is_file = section_of(item_of(hints[name]))
        usage.append("--config FILE" if is_file else f"--{name} {_metavar(hints[name])}")
    lines = textwrap.wrap(" ".join([*usage, "[flags]"]), width, subsequent_indent="  ")

    for paragraph in [description] if description else describe_class(settings_class):
        lines += ["", *textwrap.wrap(paragraph, width)]

    general = _row("--config FILE", _CONFIG, width) + _row("--help", "Prints this.", width)
    groups = {"required": required + _rows(settings_class, needed, "--", width), "general": general}
    for heading, names in field_groups(settings_class):
        shown = [name for name in names if name not in {*positionals, *needed, *unused}]
        title = "flags" if heading == ANY_FLAGS else f"{heading[0].lower()}{heading[1:]}"
        groups[title] = _rows(settings_class, shown, "--", width)
    for heading, rows in groups.items():
        lines += ["", f"{heading}:", *rows] if rows else []
    return "\n".join(lines)


def _rows(settings_class: Any, names: Sequence[str], prefix: str, width: int) -> list[str]:
    """Returns the lines of `--help` about some fields of a settings class.

    A field whose value is another settings class, which is called a section, is followed by the
    fields of that class.

    Args:
        settings_class: The class that has the fields.
        names: The names of the fields.
        prefix: What precedes each name: "--", or "--model." for the fields of the section `model`.
        width: The number of columns of a line.
    """
    hints = hints_of(settings_class)
    rows = []
    fields = {field.name: field for field in dataclasses.fields(settings_class)}
    for name in names:
        hint = hints[name]
        meaning = field_help(settings_class, name)
        if section := section_of(item_of(hint) or hint):
            rows += ["", *textwrap.wrap(f"{prefix}{name}.*: {meaning}", width)]
            rows += _rows(section, list(hints_of(section)), f"{prefix}{name}.", width)
        else:
            if default := field_default(fields[name]):
                meaning += f" (default:{_NO_BREAK}{default})"
            rows += _row(f"{prefix}{name} {_metavar(hint)}", meaning, width)
    return rows


def _row(name: str, meaning: str, width: int) -> list[str]:
    """Returns the lines of `--help` about one flag: its name, and its text in a second column.

    Args:
        name: The flag with the placeholder of its value, such as "--passes N".
        meaning: The text about the flag.
        width: The number of columns of a line.
    """
    wrapped = textwrap.wrap(meaning, width - _INDENT, break_on_hyphens=False)
    lines = [" " * _INDENT + line.replace(_NO_BREAK, " ") for line in wrapped]
    if len(name) > _INDENT - 4 or not lines:
        return [f"  {name}", *lines]
    return [f"  {name}".ljust(_INDENT) + lines[0].lstrip(), *lines[1:]]


def _metavar(hint: Any) -> str:
    """Returns the placeholder for a flag's value, such as N for a whole number."""
    kinds = typing.get_args(hint) if typing.get_origin(hint) not in (list, dict, Literal) else ()
    kind = kinds[0] if kinds else hint
    if choices_of(kind):
        return "CHOICE"
    if inner := item_of(kind):
        return f"{_metavar(inner)} ..."
    return {bool: "[true|false]", int: "N", float: "NUMBER", str: "TEXT"}.get(kind, "YAML")


def field_default(field: "dataclasses.Field[Any]") -> str:
    """Returns the default of a field as a user would write it.

    The result is empty if the field has no default, or if the default is empty.
    """
    if is_needed(field):
        return ""
    value = field.default_factory() if callable(field.default_factory) else field.default
    if isinstance(value, list | dict):
        return " ".join(map(str, value))
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))


@cache
def _read_docstring(settings_class: Any) -> tuple[str, dict[str, dict[str, str]]]:
    """Splits the docstring of a settings class into its sections and the texts of its fields.

    Returns:
        The text before the first section; and a mapping from the heading of each section to a
        mapping from the name of each of its fields to the field's text.
    """
    # From Python 3.13 on the compiler removes the indentation of docstrings.
    docstring = inspect.cleandoc(settings_class.__doc__ or "")
    before, *sections = _SECTION.split(docstring)
    groups = {}
    for heading, section in zip(sections[::2], sections[1::2], strict=True):
        _, *fields = _FIELD.split(section)
        texts = (" ".join(text.split()) for text in fields[1::2])
        groups[heading] = dict(zip(fields[::2], texts, strict=True))
    return before, groups


def describe_class(settings_class: Any) -> list[str]:
    """Returns the paragraphs of a class's docstring before its first section."""
    paragraphs = _read_docstring(settings_class)[0].split("\n\n")
    return [" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip()]


def field_groups(settings_class: Any) -> Iterator[tuple[str, list[str]]]:
    """Yields the headings in the docstring of a settings class, each with the fields under it.

    Fields of a base class are yielded under the first heading, if the base class has them under the
    heading "Attributes". A base class with other headings holds the settings of another command.
    Its fields are left out, because the docstring of `settings_class` names that command.

    Yields:
        The heading, and the names of the fields.
    """
    groups: dict[str, list[str]] = {}
    for base in settings_class.__mro__[:-1]:
        sections = _read_docstring(base)[1]
        if base is settings_class or ANY_FLAGS in sections:
            for heading, texts in sections.items():
                shown = heading if base is settings_class else next(iter(groups), heading)
                groups.setdefault(shown, []).extend(texts)
    yield from groups.items()


def field_help(settings_class: Any, name: str) -> str:
    """Returns the text about a field in the docstring of a class or of its base classes.

    The choices of the field are appended unless the text mentions all of them.
    """
    groups = [
        texts for base in settings_class.__mro__ for texts in _read_docstring(base)[1].values()
    ]
    meaning = next((texts[name] for texts in groups if name in texts), "")
    choices = choices_of(hints_of(settings_class)[name])
    are_mentioned = set(re.split(r"[^\w+-]+", meaning)).issuperset(choices)
    return meaning if are_mentioned else f"{meaning} One of {', '.join(choices)}."
