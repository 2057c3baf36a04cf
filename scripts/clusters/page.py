"""Commands and settings as docs/runners.md prints them: what is tested is what is printed."""

import re
from collections.abc import Mapping

from scripts.checkout import ROOT

PAGE = ROOT / "docs/runners.md"
_BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def read_block(section: str, word: str) -> str:
    """The one block of code below a heading that has a word."""
    parts = re.split(r"^## (.+)\n", PAGE.read_text(), flags=re.MULTILINE)
    text = dict(zip(parts[1::2], parts[2::2], strict=True)).get(section, "")
    found = [code for _, code in _BLOCK.findall(text) if word in code]
    if len(found) != 1:
        raise ValueError(
            f"{PAGE}: section {section!r} has {len(found)} blocks with {word!r}, expected one"
        )
    return str(found[0]).strip()


def fill_in(command: str, values: Mapping[str, object]) -> str:
    """A printed command with places of this machine; ValueError where it names none such."""
    for printed, own in values.items():
        if printed not in command:
            raise ValueError(f"{PAGE}: expected {printed!r} in the command {command!r}")
        command = command.replace(printed, str(own))
    return command
