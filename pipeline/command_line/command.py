"""The record of one command."""

from dataclasses import dataclass


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
        unused: Names of fields that this command does not look at; `--help` leaves them out.
        description: What `--help` says first; by default what the docstring of its settings does.
        unwinds: Whether Ctrl-C is a KeyboardInterrupt in the function, not the process's end.
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
