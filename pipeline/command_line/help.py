"""What `--help` prints of a command: the fields of its settings class, grouped by job.

A group is a section of the class's docstring: its heading, and under it each field with its text.
"""

import dataclasses
import re
import shutil
import textwrap
import typing
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Literal

from pipeline.command_line.hints import choices_of, hints_of, is_needed, item_of, section_of

_INDENT = 24
_SECTION = re.compile(r"^ {4}([A-Z][^\n]*):\n(?= {8})", re.MULTILINE)
_FIELD = re.compile(r"^ {8}(\w+): ", re.MULTILINE)
ANY_FLAGS = "Attributes"
"""Heading of the only group of a class, which has no name."""
_NO_BREAK = "\N{NO-BREAK SPACE}"
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
    """The page, as wide as the terminal."""
    width = min(100, shutil.get_terminal_size().columns)
    hints, required = hints_of(settings_class), list[str]()
    words = ["usage:", program]
    for name in positionals:
        words.append(f"{name.upper()} ..." if item_of(hints[name]) else name.upper())
        required += _row(name.upper(), field_help(settings_class, name), width)
    fields = [each for each in dataclasses.fields(settings_class) if is_needed(each)]
    needed = [each.name for each in fields if each.name not in positionals]
    for name in needed:
        is_file = section_of(item_of(hints[name]))
        words.append("--config FILE" if is_file else f"--{name} {_metavar(hints[name])}")
    lines = textwrap.wrap(" ".join([*words, "[flags]"]), width, subsequent_indent="  ")
    for paragraph in [description] if description else describe_class(settings_class):
        lines += ["", *textwrap.wrap(paragraph, width)]
    general = _row("--config FILE", _CONFIG, width) + _row("--help", "Prints this.", width)
    groups = {"required": required + _rows(settings_class, needed, "--", width), "general": general}
    for heading, names in field_groups(settings_class):
        shown = [name for name in names if name not in {*positionals, *needed, *unused}]
        said = "flags" if heading == ANY_FLAGS else f"{heading[0].lower()}{heading[1:]}"
        groups[said] = _rows(settings_class, shown, "--", width)
    for heading, rows in groups.items():
        lines += ["", f"{heading}:", *rows] if rows else []
    return "\n".join(lines)


def _rows(settings_class: Any, names: Sequence[str], prefix: str, width: int) -> list[str]:
    hints, rows = hints_of(settings_class), []
    fields = {field.name: field for field in dataclasses.fields(settings_class)}
    for name in names:
        hint, meaning = hints[name], field_help(settings_class, name)
        if section := section_of(item_of(hint) or hint):
            rows += ["", *textwrap.wrap(f"{prefix}{name}.*: {meaning}", width)]
            rows += _rows(section, list(hints_of(section)), f"{prefix}{name}.", width)
        else:
            if default := field_default(fields[name]):
                meaning += f" (default:{_NO_BREAK}{default})"
            rows += _row(f"{prefix}{name} {_metavar(hint)}", meaning, width)
    return rows


def _row(name: str, meaning: str, width: int) -> list[str]:
    wrapped = textwrap.wrap(meaning, width - _INDENT, break_on_hyphens=False)
    lines = [" " * _INDENT + line.replace(_NO_BREAK, " ") for line in wrapped]
    if len(name) > _INDENT - 4 or not lines:
        return [f"  {name}", *lines]
    return [f"  {name}".ljust(_INDENT) + lines[0].lstrip(), *lines[1:]]


def _metavar(hint: Any) -> str:
    kinds = typing.get_args(hint) if typing.get_origin(hint) not in (list, dict, Literal) else ()
    kind = kinds[0] if kinds else hint
    if choices_of(kind):
        return "CHOICE"
    if inner := item_of(kind):
        return f"{_metavar(inner)} ..."
    return {bool: "[true|false]", int: "N", float: "NUMBER", str: "TEXT"}.get(kind, "YAML")


def field_default(field: "dataclasses.Field[Any]") -> str:
    """What a field is where it is not given, as it is written; empty for nothing."""
    if is_needed(field):
        return ""
    value = field.default_factory() if callable(field.default_factory) else field.default
    if isinstance(value, list | dict):
        return " ".join(map(str, value))
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))


@cache
def _read_docstring(settings_class: Any) -> tuple[str, dict[str, dict[str, str]]]:
    """What a class's docstring says first; and by heading, the text of each field."""
    before, *rest = _SECTION.split(settings_class.__doc__ or "")
    groups = {}
    for heading, text in zip(rest[::2], rest[1::2], strict=True):
        _, *fields = _FIELD.split(text)
        texts = (" ".join(each.split()) for each in fields[1::2])
        groups[heading] = dict(zip(fields[::2], texts, strict=True))
    return before, groups


def describe_class(settings_class: Any) -> list[str]:
    """What the class's docstring says before its first field, by paragraph."""
    paragraphs = _read_docstring(settings_class)[0].split("\n\n")
    return [" ".join(each.split()) for each in paragraphs if each.strip()]


def field_groups(settings_class: Any) -> Iterator[tuple[str, list[str]]]:
    """Headings of the class's docstring with the fields under each.

    Fields of a base without headings stand under the class's first heading. A base with headings is
    another command's settings, which the class's text names.
    """
    groups: dict[str, list[str]] = {}
    for base in settings_class.__mro__[:-1]:
        own = _read_docstring(base)[1]
        if base is settings_class or ANY_FLAGS in own:
            for heading, texts in own.items():
                shown = heading if base is settings_class else next(iter(groups), heading)
                groups.setdefault(shown, []).extend(texts)
    yield from groups.items()


def field_help(settings_class: Any, name: str) -> str:
    """What the docstring of the class, or of a base, says of a field, and its choices."""
    groups = [each for base in settings_class.__mro__ for each in _read_docstring(base)[1].values()]
    meaning = next((texts[name] for texts in groups if name in texts), "")
    choices = choices_of(hints_of(settings_class)[name])
    are_told = set(re.split(r"[^\w+-]+", meaning)).issuperset(choices)
    return meaning if are_told else f"{meaning} One of {', '.join(choices)}."
