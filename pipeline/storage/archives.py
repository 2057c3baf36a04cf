"""Which files are archives of other files: their names say it."""

from pipeline.storage.compression import is_compressed, plain_suffix

_SUFFIXES = {".zip": "zip", ".tar": "tar"}


def archive_kind(url: str) -> str:
    """Returns "zip" or "tar" for a file of that name, compressed or not, and "" for others."""
    kind = _SUFFIXES.get(plain_suffix(url), "")
    return "" if kind == "zip" and is_compressed(url) else kind


def is_archive(url: str) -> bool:
    """Tells by its name whether a file is an archive, whose members are read."""
    return bool(archive_kind(url))
