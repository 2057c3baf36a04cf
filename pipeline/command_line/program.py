"""Command lines over frozen dataclasses: `PROGRAM COMMAND [flags]`, one settings class and one function per command.

A leaf that `python -m pipeline`, `python -m trainer` and `beambert` stand on. Files of `--config`
state differences from the defaults, flags win over files wherever they stand, and an unknown key
fails with the nearest that exists. A user's fault ends with one message on standard error and exit
code 2, Ctrl-C with one line and 130. What needs a package is imported by the function that needs
it, so that a missing package is such a fault too.
"""

import difflib
import importlib
import importlib.metadata
import os
import select
import signal
import sys
from collections.abc import Sequence
from typing import Any

from pipeline.command_line.command import Command
from pipeline.interrupts import Interruption
from pipeline.storage.missing_packages import describe_missing
from pipeline.storage.secret_values import hide, hide_unparsed

USER_FAULTS = (
    ValueError, FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError,
    ChildProcessError,
)  # fmt: skip
TRACEBACK_VARIABLE = "BEAMBERT_TRACEBACK"


def run_program(
    program: str, description: str, commands: dict[str, Command], argv: Sequence[str] | None = None
) -> int:
    """Runs the command that `argv` (default: the process's arguments) names and returns its exit code.

    Where nobody reads what it prints any more, as behind `| head`, it ends silently as a signal
    would end it.
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


def _run_command(
    program: str, description: str, commands: dict[str, Command], argv: Sequence[str] | None
) -> int:
    arguments, remainder = _cut_at_separator(list(sys.argv[1:] if argv is None else argv))
    arguments = _drop_launcher_rank(arguments)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview(program, description, commands))
        return 0 if arguments else 2
    if "--version" in arguments:
        print(_version())
        return 0
    name, interruption = arguments[0], Interruption()
    called = f"{program} {name}" if name in commands else program
    try:
        with interruption.watched():
            if name not in commands:
                raise ValueError(_unknown_command(name, commands))
            return _call(called, commands[name], arguments[1:], remainder, interruption)
    except KeyboardInterrupt as error:
        return interruption.report(error)
    except USER_FAULTS as fault:
        return report_fault(called, fault)
    except ImportError as error:
        if (missing := describe_missing(error)) is None:
            raise
        return report_fault(called, ValueError(missing))


def _call(
    program: str,
    command: Command,
    arguments: Sequence[str],
    remainder: Sequence[str],
    interruption: Interruption,
) -> int:
    if {"-h", "--help"} & {*arguments}:
        from pipeline.command_line.help import render_help

        print(render_help(program, load(command.settings), command))
        return 0
    if remainder and not command.takes_remainder:
        raise ValueError(f"nothing may stand after --, got: {' '.join(remainder)}")
    settings = parse_settings(program, command, arguments)
    function = load(command.function)
    interruption.unwinds = command.unwinds
    return function(settings, remainder) or 0


def _unknown_command(name: str, commands: dict[str, Command]) -> str:
    near = difflib.get_close_matches(name, commands, n=1)
    question = f"; did you mean {near[0]}?" if near else "."
    return f"unknown command {name!r}{question} The commands are {', '.join(commands)}"


def _version() -> str:
    try:
        return f"beambert {importlib.metadata.version('beambert')}"
    except importlib.metadata.PackageNotFoundError:
        return "beambert, run from a checkout without being installed"


def report_fault(program: str, fault: BaseException) -> int:
    """Prints a user's fault, from rank 0 only, and returns exit code 2."""
    if os.environ.get(TRACEBACK_VARIABLE):
        raise fault
    if os.environ.get("RANK", "0") == "0":
        print(f"{program}: error: {hide(describe_fault(fault))}", file=sys.stderr)
    return 2


def describe_fault(fault: BaseException) -> str:
    """The message of a user's fault, on any operating system error with its path."""
    if isinstance(fault, OSError) and fault.filename is not None and fault.strerror:
        return f"{fault.filename}: {fault.strerror}"
    return str(fault)


def parse_settings(program: str, command: Command, arguments: Sequence[str]) -> Any:
    """Parses flags and config files into the command's settings.

    Raises:
        ValueError: Unknown flags or keys (the message has the nearest), wrong types, missing
            values, or a URL in the place of a local folder.
    """
    from pipeline.command_line.words import parse_words

    try:
        settings = parse_words(program, load(command.settings), command.positionals, arguments)
    except ValueError as error:  # without its cause, whose message may show storage options
        raise ValueError(hide_unparsed(str(error))) from None
    for name in command.local:
        if "://" in (path := getattr(settings, name) or ""):
            raise ValueError(
                f"--{name}: found the URL {path}, expected a folder of this machine: runs are "
                "written locally; pretrain uploads checkpoints to --checkpoint.url"
            )
    return settings


def check_least(settings: Any, **least: float) -> None:
    """Holds numbers of a settings class, where they are given, to the least that makes sense.

    Raises:
        ValueError: Names the setting, its value and the least.
    """
    for name, bound in least.items():
        if (value := getattr(settings, name)) is not None and value < bound:
            raise ValueError(f"{name} is {value}; it must be at least {bound}")


def _cut_at_separator(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    position = arguments.index("--")
    return arguments[:position], arguments[position + 1 :]


def _drop_launcher_rank(arguments: list[str]) -> list[str]:
    """The deepspeed launcher puts --local_rank=N before the command; the rank is read from the environment."""
    if arguments and arguments[0].startswith("--local_rank"):
        return arguments[1 if "=" in arguments[0] else 2 :]
    return arguments


def _overview(program: str, description: str, commands: dict[str, Command]) -> str:
    width = max(map(len, commands))
    rows = "\n".join(
        f"  {name.ljust(width)}  {command.summary}" for name, command in commands.items()
    )
    return (
        f"usage: {program} COMMAND [flags]\n\n{description}\n\ncommands:\n{rows}\n\n"
        f"{program} COMMAND --help lists a command's flags.\n{program} --version says which version this is."
    )


def load(dotted: str) -> Any:
    """What "module:name" names."""
    module, _, name = dotted.partition(":")
    return getattr(importlib.import_module(module), name)
