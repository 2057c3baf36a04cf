"""Prints lines for people to a terminal or a log, without breaking a progress bar."""

import sys

from pipeline.storage.quoting import printable
from pipeline.storage.secret_values import hide


def say(text: str, *, is_aside: bool = False) -> None:
    """Prints lines above any progress bar, without secrets and without control characters.

    Args:
        text: One or several lines. They may hold names of files, which are not trusted.
        is_aside: Whether the lines are a remark, such as a warning, and no result of the command.
            They are then printed to standard error, and otherwise to standard output.
    """
    from tqdm import tqdm  # the list of commands needs no package

    tqdm.write(printable(hide(text), keeps_lines=True), file=sys.stderr if is_aside else sys.stdout)
