"""Command lines over frozen dataclasses, `PROGRAM COMMAND [flags]`: one class and function each.

A user's fault, and anything that the operating system refuses (every OSError), ends with one
message on standard error and exit code 2; Ctrl-C ends with one line and exit code 130. A function
imports the packages that it alone needs, so that help appears at once. A missing package is
reported as a user's fault as well.
"""

import errno
import importlib
import io
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipeline.interrupts import Interruption

_CURES = {
    errno.EROFS: "nothing can be written there: mount it for writing, or give another --output",
    errno.EACCES: "check who may read and write it, or give another place",
    errno.ENOSPC: "free some space and run the same command again",
    errno.EDQUOT: "free some space and run the same command again",
    errno.EMFILE: "raise the limit of open files, such as by `ulimit -n 4096`",
    errno.ENOTDIR: "a file is where a folder is needed: give another place",
    errno.EIO: "the disk fails: look at the system's log",
}


@dataclass(frozen=True)
class Command:
    """One command of a program.

    Attributes:
        summary: One line for the list of commands.
        settings: "module:Class" of the frozen dataclass that owns every flag.
        function: "module:function", imported only when this command runs. It is called with the
            settings and what followed `--`, and returns the exit code, None meaning 0.
        positionals: Names of the fields given without a flag, in order.
        takes_remainder: Whether arguments after `--` are accepted.
        unused: Names of fields that this command does not use; `--help` leaves them out.
        description: The first text of `--help`; by default the docstring of its settings.
        unwinds: Whether Ctrl-C raises KeyboardInterrupt in the function; otherwise the process
            ends.
        check: "module:function" that refuses settings before `function` is imported, which may
            take seconds.
        local: Names of the fields whose folders or files are local, so that a URL is refused.
    """

    summary: str
    settings: str
    function: str
    positionals: tuple[str, ...] = ()
    takes_remainder: bool = False
    unused: tuple[str, ...] = ()
    description: str = ""
    unwinds: bool = True
    local: tuple[str, ...] = ()
    check: str = ""


def run_program(
    program: str, description: str, commands: dict[str, Command], argv: Sequence[str] | None = None
) -> int:
    """Runs the command that `argv` (default: the process's arguments) names; its exit code.

    Where nobody reads what it prints any more, as behind `| head`, it ends as by a signal.
    """
    if "_ARGCOMPLETE" in os.environ:
        load("pipeline.command_line.completion:answer_shell")(program, commands)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a log would show a line with the next 8 kB
        sys.stdout.reconfigure(line_buffering=True)
    try:
        try:
            words = sys.argv[1:] if argv is None else argv
            return _run_command(program, description, commands, list(words))
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
    program: str, description: str, commands: dict[str, Command], words: list[str]
) -> int:
    cut = words.index("--") if "--" in words else len(words)
    arguments, remainder = words[:cut], words[cut + 1 :]
    if arguments and arguments[0].startswith("--local_rank="):  # DeepSpeed's launcher puts it there
        del arguments[0]
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview(program, description, commands))
        return 0 if arguments else 2
    if "--version" in arguments:
        from importlib.metadata import distributions

        versions = [each.version for each in distributions(name="beambert")]
        print("beambert", *(versions[:1] or ["of a checkout that is not installed"]))
        return 0
    name, interruption = arguments[0], Interruption()
    if name not in commands:
        return _report_fault(program, ValueError(_unknown_command(name, commands)))
    called = f"{program} {name}"
    try:
        with interruption.watched():
            takers = partial(_takers, commands, name)
            return _call(called, commands[name], arguments[1:], remainder, interruption, takers)
    except KeyboardInterrupt as error:
        return interruption.report(error)
    except (ValueError, OSError) as fault:
        return _report_fault(called, fault)
    except ImportError as error:
        return _report_missing(called, error)


def _report_missing(program: str, error: ImportError) -> int:
    """Prints which package to install, and returns the exit code.

    Raises:
        ImportError: The error is not about an optional package of this project.
    """
    from pipeline.storage.missing_packages import describe_missing

    if (missing := describe_missing(error)) is None:
        raise error
    return _report_fault(program, ValueError(missing))


def _call(
    program: str,
    command: Command,
    arguments: Sequence[str],
    remainder: Sequence[str],
    interruption: Interruption,
    takers: Callable[[str], Sequence[str]],
) -> int:
    if {"-h", "--help"} & {*arguments}:
        from pipeline.command_line.help import render_help

        settings_class, shown = load(command.settings), (command.positionals, command.unused)
        print(render_help(program, settings_class, *shown, command.description))
        return 0
    if remainder and not command.takes_remainder:
        raise ValueError(f"nothing may stand after --, got: {' '.join(remainder)}")
    settings = parse_settings(program, command, arguments, takers)
    if command.check:
        load(command.check)(settings)
    function = load(command.function)
    interruption.unwinds = command.unwinds
    return function(settings, remainder) or 0


def _unknown_command(name: str, commands: dict[str, Command]) -> str:
    from pipeline.command_line.names import suggest

    near = suggest(name, commands)[:1]
    question = f"; did you mean {near[0]}?" if near else "."
    return f"unknown command {name!r}{question} The commands are {', '.join(commands)}"


def _report_fault(program: str, fault: BaseException) -> int:
    """Prints a user's fault as one message, and returns the exit code.

    Every rank finds the same fault in settings and files, so rank 0 alone prints it. A disk may
    fail on one rank alone, so each rank prints the errors of its operating system.
    """
    from pipeline.storage.quoting import printable
    from pipeline.storage.secret_values import hide

    if isinstance(fault, BrokenPipeError):  # `run_program` makes no error of it
        raise fault
    rank = os.environ.get("RANK", "0")
    message = printable(hide(describe_fault(fault)), keeps_lines=True)
    if rank == "0":
        print(f"{program}: error: {message}", file=sys.stderr)
    elif isinstance(fault, OSError) and fault.errno is not None:
        print(f"{program}: error on rank {rank}: {message}", file=sys.stderr)
    return 2


def describe_fault(fault: BaseException) -> str:
    """Returns the message of a fault. An error of the operating system gets the file and a cure."""
    if not isinstance(fault, OSError) or not fault.strerror:
        return str(fault) or repr(fault)
    said = fault.strerror if fault.filename is None else f"{fault.filename}: {fault.strerror}"
    cure = _CURES.get(fault.errno or 0)
    return f"{said}; {cure}" if cure else said


def _takers(commands: dict[str, Command], caller: str, flag: str) -> list[str]:
    """Returns the names of at most two other commands that have a flag."""
    from pipeline.command_line.hints import known_keys

    others = {name: each for name, each in commands.items() if name != caller}
    found = [
        name
        for name, each in others.items()
        if flag not in each.unused and flag in known_keys(load(each.settings))
    ]
    return found[:2]


def parse_settings(
    program: str,
    command: Command,
    arguments: Sequence[str],
    takers: Callable[[str], Sequence[str]] = lambda _: (),
) -> Any:
    """The command's settings, of flags and config files; a ValueError says all that is wrong."""
    from pipeline.command_line.words import parse_words
    from pipeline.storage.addresses import refuse_one_slash

    settings = parse_words(program, load(command.settings), command.positionals, arguments, takers)
    for value in vars(settings).values():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                refuse_one_slash(text)
    for name in command.local:
        if "://" in (path := getattr(settings, name) or ""):
            cure = "runs are written locally; pretrain uploads checkpoints to --checkpoint.url"
            found = f"--{name}: found the URL {path}"
            raise ValueError(f"{found}, expected a folder of this machine: {cure}")
    return settings


def check_least(settings: Any, **least: float) -> None:
    """Refuses numbers of a settings class that are given and below the least that makes sense."""
    for name, bound in least.items():
        if (value := getattr(settings, name)) is not None and value < bound:
            raise ValueError(f"{name} is {value}; it must be at least {bound}")


def _overview(program: str, description: str, commands: dict[str, Command]) -> str:
    width = max(map(len, commands))
    rows = [f"  {name.ljust(width)}  {command.summary}\n" for name, command in commands.items()]
    return (
        f"usage: {program} COMMAND [flags]\n\n{description}\n\ncommands:\n{''.join(rows)}\n"
        f"{program} COMMAND --help lists a command's flags.\n"
        f"{program} --version says which version this is."
    )


def load(dotted: str) -> Any:
    """What "module:name" names."""
    module, _, name = dotted.partition(":")
    return getattr(importlib.import_module(module), name)
