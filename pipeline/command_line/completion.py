"""Completes commands, flags and choices in a shell, by the package argcomplete.

At TAB the shell runs the program itself, which prints the words that may follow (docs/commands.md).
"""

import argparse
from collections.abc import Mapping

from pipeline.command_line.hints import choices_of, find_hint, item_of, kind_of, known_keys
from pipeline.command_line.program import Command, load


def answer_shell(program: str, commands: Mapping[str, Command]) -> None:
    """Answers a shell that asks, at TAB, which words may follow: prints them and ends the process.

    Args:
        program: What the user types to start the program.
        commands: The program's commands by name.
    """
    import argcomplete

    argcomplete.autocomplete(completion_parser(program, commands))


def completion_parser(program: str, commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """Returns a parser of all commands, flags and choices, from which argcomplete takes its answer.

    It never parses the arguments of a command. `parse_settings` does.
    """
    parser = argparse.ArgumentParser(program)
    by_name = parser.add_subparsers()
    for name, command in commands.items():
        subparser = by_name.add_parser(name, help=command.summary)
        subparser.add_argument("--config")
        settings = load(command.settings)
        for key in known_keys(settings):
            kind = kind_of(find_hint(settings, key))
            choices = ["true", "false"] if kind is bool else choices_of(item_of(kind) or kind)
            several = "*" if item_of(kind) else None
            if key in command.positionals:
                subparser.add_argument(key, nargs=several)
            elif key.partition(".")[0] not in command.unused:
                subparser.add_argument(f"--{key}", choices=choices or None, nargs=several)
    return parser
