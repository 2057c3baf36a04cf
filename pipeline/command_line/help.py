"""What `--help` prints of a command: the fields of its settings class, their types, meanings and defaults."""

import dataclasses
import re
import shutil
import textwrap
import typing
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pipeline.command_line.values import is_needed, item_of, section_of

_INDENT = 22


def render_help(program: str, settings_class: Any, positionals: Sequence[str]) -> str:
    """The page, as wide as the terminal."""
    width = min(100, shutil.get_terminal_size().columns)
    hints = typing.get_type_hints(settings_class)
    words = [f"{name.upper()} ..." if item_of(hints[name]) else name.upper() for name in positionals]
    needed = [
        field for field in dataclasses.fields(settings_class) if is_needed(field) and field.name not in positionals
    ]
    flags = [f"--{field.name} {_metavar(hints[field.name])}" for field in needed]
    lines = [textwrap.fill(" ".join(["usage:", program, *words, *flags, "[flags]"]), width, subsequent_indent="  "), ""]
    lines += textwrap.wrap((settings_class.__doc__ or "").split("\n\n")[0], width)
    lines += [""] if positionals else []
    for name in positionals:
        lines += _row(name.upper(), field_help(settings_class, name), width)
    lines += ["", "flags:", *_row("--help", "Prints this.", width)]
    lines += _row("--config FILE", "YAML file of settings that differ from the defaults; flags win over it.", width)
    return "\n".join([*lines, *_rows(settings_class, positionals, "--", width)])


def _rows(settings_class: Any, left_out: Sequence[str], prefix: str, width: int) -> Iterator[str]:
    hints = typing.get_type_hints(settings_class)
    for field in dataclasses.fields(settings_class):
        if field.name in left_out:
            continue
        hint, meaning = hints[field.name], field_help(settings_class, field.name)
        section, item = section_of(hint), section_of(item_of(hint))
        if section:
            yield from ("", *textwrap.wrap(f"{prefix}{field.name}.*: {meaning}", width))
            yield from _rows(section, (), f"{prefix}{field.name}.", width)
            yield ""
            continue
        yield from _row(f"{prefix}{field.name} {_metavar(hint)}", f"{meaning} {_default(field)}".strip(), width)
        if item:
            yield from textwrap.wrap(f"Each of {field.name} has these keys:", width, initial_indent="    ")
            yield from _rows(item, (), "    ", width)


def _row(name: str, meaning: str, width: int) -> list[str]:
    indent = " " * (_INDENT + 2)
    lines = textwrap.wrap(meaning, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    if len(name) > _INDENT - 2 or not lines:
        return [f"  {name}", *lines]
    return [f"  {name.ljust(_INDENT)}{lines[0].lstrip()}", *lines[1:]]


def _metavar(hint: Any) -> str:
    kinds = typing.get_args(hint) if typing.get_origin(hint) not in (list, dict, Literal) else ()
    kind = kinds[0] if kinds else hint
    if typing.get_origin(kind) is Literal:
        return "{" + ",".join(map(str, typing.get_args(kind))) + "}"
    if inner := item_of(kind):
        return "[{...}, ...]" if section_of(inner) else f"{_metavar(inner)} ..."
    return {bool: "[true|false]", int: "N", float: "NUMBER", str: "TEXT"}.get(kind, "{...}")


def _default(field: "dataclasses.Field[Any]") -> str:
    if is_needed(field):
        return "(needed)"
    value = field.default_factory() if callable(field.default_factory) else field.default
    shown = " ".join(map(str, value)) if isinstance(value, list) else value
    words = {None: "null", True: "true", False: "false"}
    shown = words[shown] if isinstance(shown, bool | None) else shown
    return f"(default: {shown})" if shown not in ("", {}) else ""


def field_help(settings_class: Any, name: str) -> str:
    """What the class's docstring says of a field (its `Attributes:` section)."""
    any_field = "|".join(field.name for field in dataclasses.fields(settings_class))
    pattern = rf"^\s+{name}: (.+?)(?=^\s+(?:{any_field}): |\Z)"
    match = re.search(pattern, settings_class.__doc__ or "", re.MULTILINE | re.DOTALL)
    return " ".join(match.group(1).split()) if match else ""
