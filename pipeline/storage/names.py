"""Names that a file tells and that become paths: none may lead out of its folder."""

import re
from collections.abc import Iterable

_MAX_BYTES = 255
_NOT_PLAIN = re.compile(r"[/\\\x00-\x1f\x7f]")


def is_plain(name: object) -> bool:
    """Whether it names a file right inside a folder: one part, no control character."""
    return (
        isinstance(name, str)
        and name not in ("", ".", "..")
        and _NOT_PLAIN.search(name) is None
        and len(name.encode(errors="surrogatepass")) <= _MAX_BYTES
    )


def stays_below(path: str) -> bool:
    """Whether a relative path stays below its folder: it begins at no root and never goes up."""
    parts = path.replace("\\", "/").split("/")
    return parts[0] != "" and ".." not in parts


def require_plain(names: Iterable[object], where: str) -> None:
    """Refuses, by a ValueError, a file `where` that tells another name than a plain one."""
    for name in names:
        if not is_plain(name):
            expected = "expected a file's name without a folder"
            cause = "somebody else wrote this file, or it is damaged: restore it"
            raise ValueError(f"{where}: found the name {str(name)[:200]!r}, {expected}; {cause}")
