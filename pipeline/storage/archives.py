"""Decides by a file's name whether it is an archive, whose members are read as files."""

from pipeline.storage.compression import is_compressed, plain_suffix

_SUFFIXES = {".zip": "zip", ".tar": "tar"}


def archive_kind(url: str) -> str:
    """Returns the kind of archive that a file's name promises: "zip", "tar" or "" for none.

    A compressed tar such as a.tar.gz or a.tgz is "tar"; a compressed zip is not read as an archive.
    """
    kind = _SUFFIXES.get(plain_suffix(url), "")
    return "" if kind == "zip" and is_compressed(url) else kind


def is_archive(url: str) -> bool:
    """Returns whether a file's name says that it is an archive, so that its members are read."""
    return bool(archive_kind(url))
