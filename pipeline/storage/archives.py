"""Tells by a file's name whether it is an archive of other files."""

from pipeline.storage.compression import is_compressed, plain_suffix

_SUFFIXES = {".zip": "zip", ".tar": "tar"}


def archive_kind(url: str) -> str:
    """Returns "zip" or "tar" if a file's name ends so, compressed or not; otherwise ""."""
    kind = _SUFFIXES.get(plain_suffix(url), "")
    return "" if kind == "zip" and is_compressed(url) else kind


def is_archive(url: str) -> bool:
    """Returns whether a file is an archive by its name, so that its members are read."""
    return bool(archive_kind(url))
