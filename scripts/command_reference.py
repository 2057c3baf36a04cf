"""Writes docs/commands.md: every command with its settings, from the classes behind --help.

python scripts/command_reference.py           # after a setting has changed; a test holds the page
to the program
"""

import dataclasses
import re
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.cli import COMMANDS as PIPELINE
from pipeline.command_line.help import (
    ANY_FLAGS,
    describe_class,
    field_default,
    field_groups,
    field_help,
)
from pipeline.command_line.hints import choices_of, is_needed
from pipeline.command_line.program import Command, load
from pipeline.machine import num_cores
from trainer.cli import COMMANDS as TRAINER

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
HEAD = """\
# Commands and settings

This page lists every command with its settings, for people who look for one or want to know its
default. It has the first sentence about each setting; `--help` of a command says all about it.
`python -m scripts.command_reference` writes the page from the program.

A setting is a flag, with `--` before its name: `--seq_lens 128 512`. It is also a key in the YAML
file of `--config`, where a dot in the name separates levels. A flag wins over the file. The default
of a setting follows its name in parentheses. A setting that must be given is marked as needed.

Once the package is installed, the same commands are `beambert build`, `beambert pretrain` and so
on. `report` and `export` of a dataset are `beambert report-data` and `export-data`. `--config
bert-large` is the recipe of that name, in every folder.

bash and zsh complete commands, flags and choices: `pip install argcomplete` where beambert is
installed, and put `eval "$(register-python-argcomplete beambert)"` into `~/.bashrc` or `~/.zshrc`.
"""


def render() -> str:
    """Returns the text of the page."""
    sections = [HEAD]
    described: dict[str, str] = {}
    for program, commands in (("pipeline", PIPELINE), ("trainer", TRAINER)):
        for name, command in commands.items():
            title = f"python -m {program} {name}"
            sections.append(
                "\n".join([f"## {title}", "", *_describe(title, command, described)]) + "\n"
            )
    return "\n".join(sections)


def _describe(title: str, command: Command, described: dict[str, str]) -> Iterator[str]:
    settings = load(command.settings)
    yield command.description or "\n\n".join(describe_class(settings))
    if command.settings in described:
        unused = ", ".join(f"`{name}`" for name in command.unused)
        other = described[command.settings]
        yield f"\nIts settings are those of `{other}`. It does not look at {unused}."
        return
    described[command.settings] = title
    if command.positionals:
        yield f"\nPositional: {', '.join(f'`{name}`' for name in command.positionals)}."
    listed = [
        (heading, row) for heading, names in field_groups(settings) for row in rows(settings, names)
    ]
    for other in dict.fromkeys(described.values()):
        keys = [row.split("`")[1] for _, row in listed if described.get(row) == other]
        same = dict.fromkeys(f"`{re.sub('[.].*', '.*', key)}`" for key in keys)
        if same:
            yield f"\nAs in `{other}`: {', '.join(same)}."
    above = None
    for heading, row in listed:
        if row not in described:
            if heading != above:
                yield "" if heading == ANY_FLAGS else f"\n**{heading}**\n"
            yield row
            above = heading
    for _, row in listed:
        described.setdefault(row, title)


def rows(settings: Any, names: Sequence[str], prefix: str = "", outer: Any = None) -> Iterator[str]:
    """Yields a line for each setting: its key, its default and its meaning.

    The settings of a nested class follow the setting that holds them.

    Args:
        settings: The class of the settings.
        names: The settings of the class that are listed.
        prefix: What stands before their names, such as "optimizer."
        outer: The class that holds this one. A setting with the same text there is not explained
            again.
    """
    fields = {field.name: field for field in dataclasses.fields(settings)}
    hints = typing.get_type_hints(settings)
    for name in names:
        key = f"{prefix}{name}"
        meaning = _first_sentence(field_help(settings, name), hints[name])
        shared = outer and name in typing.get_type_hints(outer)
        if shared and field_help(settings, name) == field_help(outer, name):
            meaning = f"As `{name}`."
        kinds = (hints[name], *typing.get_args(hints[name]))
        inner = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
        yield f"- `{key}`{'' if inner else _default(fields[name])}: {meaning}"
        if inner:
            yield from rows(inner, list(typing.get_type_hints(inner)), f"{key}.", settings)


def _first_sentence(text: str, hint: Any) -> str:
    """Returns the first sentence of a setting's text, and the choices that it does not name."""
    first = re.split(r"(?<=\.) (?=[A-Z])", text)[0]
    named = set(re.split(r"[^\w+-]+", first))
    if set(choices_of(hint)) - named:
        first = f"{first} One of {', '.join(choices_of(hint))}."
    return first


def _default(field: "dataclasses.Field[Any]") -> str:
    if is_needed(field):
        return " (needed)"
    shown = "" if field.default_factory is num_cores else field_default(field)
    return f" (`{shown}`)" if shown and shown != "null" else ""


if __name__ == "__main__":
    PAGE.write_text(render())
