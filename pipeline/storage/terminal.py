"""The one way by which lines for people reach a terminal or a log, above any progress bar."""

import sys

from pipeline.storage.quoting import printable
from pipeline.storage.secret_values import hide


def say(text: str, *, is_aside: bool = False) -> None:
    """Prints lines without secrets, and with nothing that a terminal obeys, whoever named a file.

    Args:
        text: One or several lines.
        is_aside: Whether they go to standard error, as they are no result of the command.
    """
    from tqdm import tqdm  # the list of commands needs no package

    tqdm.write(printable(hide(text), keeps_lines=True), file=sys.stderr if is_aside else sys.stdout)
