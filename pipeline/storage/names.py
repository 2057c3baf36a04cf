"""Checks names that are read from files and become paths, so that none leads out of its folder."""

import re
from collections.abc import Iterable

_MAX_BYTES = 255
_NOT_PLAIN = re.compile(r"[/\\\x00-\x1f\x7f]")


def is_plain(name: object) -> bool:
    """Returns whether a value can be the name of a file directly inside a folder.

    It must be a string of one path component, not "." or "..", without control characters and of
    at most 255 bytes.
    """
    return (
        isinstance(name, str)
        and name not in ("", ".", "..")
        and _NOT_PLAIN.search(name) is None
        and len(name.encode(errors="surrogatepass")) <= _MAX_BYTES
    )


def stays_below(path: str) -> bool:
    """Returns whether a path leads nowhere but below its folder.

    It must be relative and have no component "..". A backslash counts as a slash.
    """
    parts = path.replace("\\", "/").split("/")
    return parts[0] != "" and ".." not in parts


def require_plain(names: Iterable[object], where: str) -> None:
    """Checks that every name can be the name of a file directly inside a folder.

    Args:
        names: Names that were read from a file.
        where: The file that they were read from, for the message.

    Raises:
        ValueError: A name has a folder or a control character in it, or is too long (`is_plain`).
    """
    for name in names:
        if not is_plain(name):
            expected = "expected a file's name without a folder"
            cause = "somebody else wrote this file, or it is damaged: restore it"
            raise ValueError(f"{where}: found the name {str(name)[:200]!r}, {expected}; {cause}")
