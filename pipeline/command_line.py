"""Command lines over frozen dataclasses: `PROGRAM COMMAND [flags]`, one settings class and one function per command.

A leaf that both `python -m pipeline` and `python -m trainer` stand on: stdlib and jsonargparse only. Files given with
`--config` state differences from the defaults, flags win over files wherever they stand, and unknown keys fail with
the keys that exist. A user's fault ends with one message on standard error and exit code 2.
"""

import dataclasses
import importlib
import os
import re
import select
import signal
import sys
import types
import typing
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonargparse

USER_FAULTS = (
    ValueError, FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError,
    ChildProcessError,
)  # fmt: skip
TRACEBACK_VARIABLE = "BEAMBERT_TRACEBACK"


@dataclasses.dataclass(frozen=True)
class Command:
    """One command of a program.

    Attributes:
        summary: One line for the list of commands.
        settings: "module:Class" of the frozen dataclass that owns every flag, its default and its meaning.
        function: "module:function", called with the settings and what followed `--` on the command line. It returns
            the exit code, None meaning 0. Imported only when this command runs, so that help stays quick.
        positionals: Names of the fields given without a flag, in order.
        takes_remainder: Whether arguments after `--` are accepted.
    """

    summary: str
    settings: str
    function: str
    positionals: tuple[str, ...] = ()
    takes_remainder: bool = False


def run_program(program: str, description: str, commands: dict[str, Command], argv: Sequence[str] | None = None) -> int:
    """Runs the command that `argv` (default: the process's arguments) names and returns its exit code.

    Where nobody reads what it prints any more, as behind `| head`, it ends silently as a signal would end it.
    """
    try:
        try:
            return _run_command(program, description, commands, argv)
        finally:
            print(end="", flush=True)
    except BrokenPipeError:
        if not (lost := [stream for stream in (1, 2) if _has_no_reader(stream)]):
            raise
        for stream in lost:  # the interpreter flushes what is left
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        return 128 + signal.SIGPIPE


def _has_no_reader(descriptor: int) -> bool:
    watched = select.poll()
    watched.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in watched.poll(0))


def _run_command(program: str, description: str, commands: dict[str, Command], argv: Sequence[str] | None) -> int:
    arguments, remainder = _cut_at_separator(list(sys.argv[1:] if argv is None else argv))
    arguments = _join_negative_lists(arguments)
    arguments = _drop_launcher_rank(arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview(program, description, commands))
        return 0 if arguments else 2
    name = arguments[0]
    try:
        if name not in commands:
            raise ValueError(f"unknown command {name!r}; the commands are {', '.join(commands)}")
        command = commands[name]
        if remainder and not command.takes_remainder:
            raise ValueError(f"{name} takes nothing after --, got: {' '.join(remainder)}")
        settings = parse_settings(f"{program} {name}", command, arguments[1:])
        return _load(command.function)(settings, remainder) or 0
    except USER_FAULTS as fault:
        return report_fault(f"{program} {name}", fault)


def report_fault(program: str, fault: BaseException) -> int:
    """Prints a user's fault, from rank 0 only, and returns exit code 2."""
    if os.environ.get(TRACEBACK_VARIABLE):
        raise fault
    if os.environ.get("RANK", "0") == "0":
        print(f"{program}: error: {describe_fault(fault)}", file=sys.stderr)
    return 2


def describe_fault(fault: BaseException) -> str:
    """The message of a user's fault, on any operating system error with its path."""
    if isinstance(fault, OSError) and fault.filename is not None and fault.strerror:
        return f"{fault.filename}: {fault.strerror}"
    return str(fault)


def parse_settings(program: str, command: Command, arguments: Sequence[str]) -> Any:
    """Parses flags and config files into the command's settings.

    Raises:
        ValueError: An unknown key (the message shows the keys that exist), a wrong type or a missing value.
    """
    settings_class = _load(command.settings)
    parser = _build_parser(program, command, settings_class)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = parser.parse_args(_config_first(list(arguments)))
            instances = parser.instantiate(parsed)
    except (jsonargparse.ArgumentError, ValueError) as error:
        raise ValueError(_explain(str(error), settings_class)) from error
    fields = [field.name for field in dataclasses.fields(settings_class)]
    return settings_class(**{name: getattr(instances, name) for name in fields})


def _build_parser(program: str, command: Command, settings_class: Any) -> jsonargparse.ArgumentParser:
    summary = (settings_class.__doc__ or command.summary).split("\n\n")[0]
    parser = jsonargparse.ArgumentParser(prog=program, description=summary, exit_on_error=False)
    lists = _list_fields(settings_class)
    for name in command.positionals:
        nargs = "+" if name in lists else None
        parser.add_argument(name, type=lists.get(name, str), nargs=nargs, help=field_help(settings_class, name))
    parser.add_argument("--config", action="config", help="YAML file of settings that differ from the defaults")
    parser.add_class_arguments(settings_class, skip={*lists, *command.positionals}, sub_configs=False)
    for field in dataclasses.fields(settings_class):
        if field.name in lists and field.name not in command.positionals:
            has_default = field.default_factory is not dataclasses.MISSING
            parser.add_argument(
                f"--{field.name}",
                nargs="+",
                type=lists[field.name],
                required=not has_default,
                default=field.default_factory() if callable(field.default_factory) else None,
                help=field_help(settings_class, field.name),
            )
    return parser


def _list_fields(settings_class: Any) -> dict[str, Callable[[str], Any]]:
    """Fields holding a list of plain values: shells expand globs into several words, so they take one or more."""
    found: dict[str, Callable[[str], Any]] = {}
    for name, hint in typing.get_type_hints(settings_class).items():
        if isinstance(hint, types.GenericAlias) and hint.__origin__ is list and hint.__args__[0] in (str, int, float):
            found[name] = hint.__args__[0]
    return found


def field_help(settings_class: Any, name: str) -> str:
    """What the class's docstring says of a field (its `Attributes:` section)."""
    any_field = "|".join(field.name for field in dataclasses.fields(settings_class))
    pattern = rf"^\s+{name}: (.+?)(?=^\s+(?:{any_field}): |\Z)"
    match = re.search(pattern, settings_class.__doc__ or "", re.MULTILINE | re.DOTALL)
    return " ".join(match.group(1).split()) if match else ""


def _config_first(arguments: list[str]) -> list[str]:
    """Moves `--config FILE` to the front, so that flags always win over files."""
    files: list[str] = []
    rest: list[str] = []
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word == "--config" and position + 1 < len(arguments):
            files += [word, arguments[position + 1]]
            position += 1
        elif word.startswith("--config="):
            files.append(word)
        else:
            rest.append(word)
        position += 1
    for file in files:
        path = file.removeprefix("--config=")
        if path != "--config" and not Path(path).is_file():
            raise FileNotFoundError(f"no configuration file {path}")
    return files + rest


def _explain(message: str, settings_class: Any) -> str:
    """Adds the keys that exist where a key was not known: the library says only which one was wrong."""
    message = message.strip()
    if "item assignment" in message:  # what the library says of a single value where it expects a list
        lists = ", ".join(_list_fields(settings_class))
        return f"a --config file gives one value where a list belongs, as [value]; lists are {lists}"
    if not re.search("unrecognized|not accept", message):
        return message
    return f"{message}; the keys are {', '.join(known_keys(settings_class))}"


def known_keys(settings_class: Any, prefix: str = "") -> list[str]:
    """Every key of a settings class, those of nested classes after a dot."""
    keys: list[str] = []
    for name, hint in typing.get_type_hints(settings_class).items():
        inner = next((kind for kind in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(kind)), None)
        keys += known_keys(inner, f"{prefix}{name}.") if inner else [f"{prefix}{name}"]
    return keys


def _cut_at_separator(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    position = arguments.index("--")
    return arguments[:position], arguments[position + 1 :]


def _join_negative_lists(arguments: list[str]) -> list[str]:
    """`--layers -1,-2` as `--layers=-1,-2`: the parser takes a word that begins so for a flag."""
    joined: list[str] = []
    for word in arguments:
        if re.fullmatch(r"-\d+(,-?\d+)+", word) and joined and re.fullmatch(r"--[\w.]+", joined[-1]):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _drop_launcher_rank(arguments: list[str]) -> list[str]:
    """The deepspeed launcher puts --local_rank=N before the command; the rank is read from the environment."""
    if arguments and arguments[0].startswith("--local_rank"):
        return arguments[1 if "=" in arguments[0] else 2 :]
    return arguments


def _overview(program: str, description: str, commands: dict[str, Command]) -> str:
    width = max(map(len, commands))
    rows = "\n".join(f"  {name.ljust(width)}  {command.summary}" for name, command in commands.items())
    return (
        f"usage: {program} COMMAND [flags]\n\n{description}\n\ncommands:\n{rows}\n\n"
        f"{program} COMMAND --help lists a command's flags."
    )


def _load(dotted: str) -> Any:
    module, _, name = dotted.partition(":")
    return getattr(importlib.import_module(module), name)
