"""Runs programs of several commands, `PROGRAM COMMAND [flags]`.

A command is a function, and a frozen dataclass whose fields are its flags.

If a function raises ValueError, which means a mistake of the user, or OSError, the program prints
one message on standard error and ends with exit code 2. On Ctrl-C it prints one line and ends with
exit code 130. A function imports the packages that only it needs, so that help appears at once. If
such a package is not installed, the program says so and ends with exit code 2.
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
    errno.EISDIR: "a folder is where a file is to be written: give the name of a file",
    errno.ENOTDIR: "a file is where a folder is needed: give another place",
    errno.EIO: "the disk fails: look at the system's log",
}
"""Error number of the operating system -> what the user can do about it."""


@dataclass(frozen=True)
class Command:
    """One command of a program.

    Attributes:
        summary: One line for the list of commands.
        settings: "module:Class" of the frozen dataclass that owns every flag.
        function: "module:function", imported only when this command runs. It is called with the
            settings and the list of arguments after `--`. It returns the exit code, or None for 0.
        positionals: Names of the fields given without a flag, in order.
        takes_remainder: Whether arguments after `--` are accepted.
        unused: Names of fields that this command does not use, and that `--help` leaves out.
        description: The first text of `--help`. If it is empty, the text is the beginning of the
            docstring of the settings.
        unwinds: Whether Ctrl-C raises KeyboardInterrupt in the function, so that it can clean up.
            If not, Ctrl-C ends the process at once.
        check: "module:function" that is called with the settings, and raises ValueError for wrong
            ones. It is called before `function` is imported, which may take seconds.
        local: Names of the fields that name local folders or files. A URL in them is refused.
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
    """Runs the command that the arguments name, and returns the exit code of the process.

    If nobody reads the output any more, as after `| head`, the code is that of SIGPIPE.

    Args:
        program: What the user types to start the program, for messages.
        description: One line for the list of commands.
        commands: The commands by name.
        argv: The arguments; by default those of the process.
    """
    if "_ARGCOMPLETE" in os.environ:
        load("pipeline.command_line.completion:answer_shell")(program, commands)
    if isinstance(sys.stdout, io.TextIOWrapper):  # otherwise a log gets 8 kB at a time
        sys.stdout.reconfigure(line_buffering=True)
    try:
        try:
            words = sys.argv[1:] if argv is None else argv
            return _run_command(program, description, commands, list(words))
        finally:
            print(end="", flush=True)
    except BrokenPipeError:
        closed = [stream for stream in (1, 2) if _has_no_reader(stream)]
        if not closed:
            raise
        for stream in closed:  # at exit Python writes its buffers, which would fail once more
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        return 128 + signal.SIGPIPE


def _has_no_reader(descriptor: int) -> bool:
    """Returns whether a file descriptor is a pipe whose other end is closed."""
    watched = select.poll()
    watched.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in watched.poll(0))


def _run_command(
    program: str, description: str, commands: dict[str, Command], words: list[str]
) -> int:
    """Runs the command that `words` name, and returns the exit code.

    Mistakes of the user and errors of the operating system are printed, and do not leave this
    function.

    Args:
        program: What the user types to start the program, for messages.
        description: One line for the list of commands.
        commands: The commands by name.
        words: The name of the command, and its arguments.

    Raises:
        BrokenPipeError: Nobody reads the output any more.
    """
    cut = words.index("--") if "--" in words else len(words)
    arguments = words[:cut]
    remainder = words[cut + 1 :]
    if arguments and arguments[0].startswith("--local_rank="):  # DeepSpeed's launcher puts it there
        del arguments[0]
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]

    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview(program, description, commands))
        return 0 if arguments else 2
    if "--version" in arguments:
        from importlib.metadata import distributions

        versions = [distribution.version for distribution in distributions(name="beambert")]
        print("beambert", *(versions[:1] or ["of a checkout that is not installed"]))
        return 0

    name = arguments[0]
    interruption = Interruption()
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
    """Prints which optional package the user has to install, and returns the exit code.

    Args:
        program: The program and the command, for the message.
        error: The error that an import raised.

    Raises:
        ImportError: It is `error` itself, if it is not about an optional package of this project.
    """
    from pipeline.storage.missing_packages import describe_missing

    missing = describe_missing(error)
    if missing is None:
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
    """Prints the help of a command, or parses its settings and calls its function.

    Args:
        program: The program and the command, for messages.
        command: The command.
        arguments: The words after the command, up to `--`.
        remainder: The words after `--`.
        interruption: The handler of signals. Its `unwinds` is set to that of the command.
        takers: A function that returns the names of the other commands that have a given flag, for
            the message about a flag that this command does not know.

    Returns:
        The exit code.

    Raises:
        ValueError: The arguments are wrong, or the function found a mistake of the user.
    """
    if {"-h", "--help"} & {*arguments}:
        from pipeline.command_line.help import render_help

        settings_class = load(command.settings)
        print(
            render_help(
                program, settings_class, command.positionals, command.unused, command.description
            )
        )
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
    """Returns the message about a command that does not exist, with the most similar one."""
    from pipeline.command_line.names import suggest

    near = suggest(name, commands)[:1]
    question = f"; did you mean {near[0]}?" if near else "."
    return f"unknown command {name!r}{question} The commands are {', '.join(commands)}"


def _report_fault(program: str, fault: BaseException) -> int:
    """Prints the message of an error, and returns the exit code.

    In a job of several ranks, all ranks find the same mistakes in settings and files, so only rank
    0 prints them. An error of the operating system, such as a full disk, may occur on one rank
    only, so every rank prints its own.

    Args:
        program: The program and the command, for the message.
        fault: The error.

    Raises:
        BrokenPipeError: `fault` is one. `run_program` handles it.
    """
    from pipeline.storage.quoting import printable
    from pipeline.storage.secret_values import hide

    if isinstance(fault, BrokenPipeError):  # `run_program` ends without a message then
        raise fault
    rank = os.environ.get("RANK", "0")
    message = printable(hide(describe_fault(fault)), keeps_lines=True)
    if rank == "0":
        print(f"{program}: error: {message}", file=sys.stderr)
    elif isinstance(fault, OSError) and fault.errno is not None:
        print(f"{program}: error on rank {rank}: {message}", file=sys.stderr)
    return 2


def describe_fault(fault: BaseException) -> str:
    """Returns the text of an error, for the user.

    For an error of the operating system, the text is the file, what went wrong and, if it is known,
    what to do about it.
    """
    if not isinstance(fault, OSError) or not fault.strerror:
        return str(fault) or repr(fault)
    found = fault.strerror if fault.filename is None else f"{fault.filename}: {fault.strerror}"
    cure = _CURES.get(fault.errno or 0)
    return f"{found}; {cure}" if cure else found


def _takers(commands: dict[str, Command], caller: str, flag: str) -> list[str]:
    """Returns the names of at most two commands, other than `caller`, that have a flag.

    Args:
        commands: The commands by name.
        caller: The name of the command that does not know the flag.
        flag: The flag without hyphens before it.
    """
    from pipeline.command_line.hints import known_keys

    others = {name: command for name, command in commands.items() if name != caller}
    takers = [
        name
        for name, command in others.items()
        if flag not in command.unused and flag in known_keys(load(command.settings))
    ]
    return takers[:2]


def parse_settings(
    program: str,
    command: Command,
    arguments: Sequence[str],
    takers: Callable[[str], Sequence[str]] = lambda _: (),
) -> Any:
    """Reads the settings of a command from its arguments and the files that they name.

    Args:
        program: The program and the command, for messages.
        command: The command.
        arguments: The words after the command.
        takers: A function that returns the names of the other commands that have a given flag, for
            the message about a flag that this command does not know.

    Returns:
        An object of the command's settings class.

    Raises:
        ValueError: Arguments or values are wrong; the message has one line for each mistake.
    """
    from pipeline.command_line.words import parse_words
    from pipeline.storage.addresses import refuse_misspelt

    settings = parse_words(program, load(command.settings), command.positionals, arguments, takers)
    for value in vars(settings).values():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                refuse_misspelt(text)
    for name in command.local:
        path = getattr(settings, name) or ""
        if "://" in path or path.startswith("file:"):
            cure = "runs are written locally; pretrain uploads checkpoints to --checkpoint.url"
            found = f"--{name}: found the URL {path}"
            raise ValueError(f"{found}, expected a folder of this machine: {cure}")
    return settings


def check_least(settings: Any, **least: float) -> None:
    """Checks that numeric settings are not too small.

    Args:
        settings: An object of a settings class.
        **least: The least value of each field, by the field's name. A field that is None passes.

    Raises:
        ValueError: A field is below its least value.
    """
    for name, bound in least.items():
        value = getattr(settings, name)
        if value is not None and value < bound:
            raise ValueError(f"{name} is {value}; it must be at least {bound}")


def _overview(program: str, description: str, commands: dict[str, Command]) -> str:
    """Returns the text that the program prints if the user names no command: all commands."""
    width = max(map(len, commands))
    rows = [f"  {name.ljust(width)}  {command.summary}\n" for name, command in commands.items()]
    return (
        f"usage: {program} COMMAND [flags]\n\n{description}\n\ncommands:\n{''.join(rows)}\n"
        f"{program} COMMAND --help lists a command's flags.\n"
        f"{program} --version says which version this is."
    )


def load(dotted: str) -> Any:
    """Imports a module, and returns one of its classes, functions or other objects.

    Args:
        dotted: The module and the name of the object in it, as "module:name".
    """
    module, _, name = dotted.partition(":")
    return getattr(importlib.import_module(module), name)
