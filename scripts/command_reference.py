"""Writes docs/commands.md: every command with its settings, defaults and meanings, from the classes behind --help.

python scripts/command_reference.py           # after a setting has changed; a test holds the page to the program
"""

import dataclasses
import importlib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.cli import COMMANDS as PIPELINE
from pipeline.command_line.help import field_help
from pipeline.command_line.program import Command
from trainer.cli import COMMANDS as TRAINER

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
HEAD = """\
# Commands and settings

Written by `python -m scripts.command_reference` from what `--help` says; a test holds it to the program. Settings are
flags, `--` before their name, and keys of the file of `--config`, where a dot is a level; flags win over files.
"""


def render() -> str:
    """The page."""
    sections = [HEAD]
    described: dict[str, str] = {}
    for program, commands in (("pipeline", PIPELINE), ("trainer", TRAINER)):
        for name, command in commands.items():
            title = f"python -m {program} {name}"
            sections.append("\n".join([f"## {title}", "", *_describe(title, command, described)]) + "\n")
    return "\n".join(sections)


def _describe(title: str, command: Command, described: dict[str, str]) -> Iterator[str]:
    settings = load_class(command.settings)
    if command.settings in described:
        yield f"{command.summary.capitalize()}. Its settings are those of `{described[command.settings]}`."
        return
    yield " ".join((settings.__doc__ or "").split("\n\n")[0].split())
    described[command.settings] = title
    inherited = next((known for known in described if load_class(known) in settings.__mro__[1:]), None)
    if inherited:
        yield f"\nBesides these it takes the settings of `{described[inherited]}`."
    if command.positionals:
        yield f"\nWithout a flag, in order: {', '.join(f'`{name}`' for name in command.positionals)}."
    yield "\n| setting | default | meaning |\n|---|---|---|"
    own = set(settings.__annotations__) if inherited else None
    for key, default, meaning in rows(settings):
        if own is None or key.partition(".")[0] in own:
            yield f"| `{key}` | {default} | {meaning} |"


def rows(settings: Any, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Key, default and meaning of every setting, those of nested classes after their own."""
    hints = typing.get_type_hints(settings)
    for field in dataclasses.fields(settings):
        key, meaning = f"{prefix}{field.name}", field_help(settings, field.name).replace("|", r"\|")
        kinds = (hints[field.name], *typing.get_args(hints[field.name]))
        inner = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
        yield key, "" if inner else _default(field), meaning
        if inner:
            yield from rows(inner, f"{key}.")


def load_class(dotted: str) -> Any:
    """The class that "module:Class" names."""
    module, _, name = dotted.partition(":")
    return getattr(importlib.import_module(module), name)


def _default(field: "dataclasses.Field[Any]") -> str:
    if field.default is not dataclasses.MISSING:
        value = field.default
    elif field.default_factory is dataclasses.MISSING:
        return "(to be given)"
    elif not isinstance(value := field.default_factory(), list | dict):
        return "(the machine's)"
    shown = {None: "null", True: "true", False: "false"}.get(value, value) if isinstance(value, bool | None) else value
    return f"`{shown}`".replace("|", r"\|") if shown not in ("", [], {}) else ""


if __name__ == "__main__":
    PAGE.write_text(render())
