"""Reads commands and settings from docs/runners.md, so that what it prints is what is tested."""

import re
from collections.abc import Mapping

from scripts.checkout import ROOT

PAGE = ROOT / "docs/runners.md"
_BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def read_block(section: str, word: str) -> str:
    """Returns the block of code in a section of the page that contains a word.

    Raises:
        ValueError: No block of the section contains the word, or several do.
    """
    parts = re.split(r"^## (.+)\n", PAGE.read_text(), flags=re.MULTILINE)
    text = dict(zip(parts[1::2], parts[2::2], strict=True)).get(section, "")
    found = [code for _, code in _BLOCK.findall(text) if word in code]
    if len(found) != 1:
        raise ValueError(
            f"{PAGE}: section {section!r} has {len(found)} blocks with {word!r}, expected one"
        )
    return str(found[0]).strip()


def fill_in(command: str, values: Mapping[str, object]) -> str:
    """Returns a printed command with the places of this machine.

    Args:
        command: The command as the page prints it.
        values: By what is printed, what replaces it.

    Raises:
        ValueError: The command does not contain one of the printed places.
    """
    for printed, own in values.items():
        if printed not in command:
            raise ValueError(f"{PAGE}: expected {printed!r} in the command {command!r}")
        command = command.replace(printed, str(own))
    return command
