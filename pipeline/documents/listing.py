"""The files that a path, a folder or a glob stands for.

Links are followed; in a folder files that only speak of the data are left out.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from fsspec.utils import glob_translate

from pipeline.documents.files import StorageOptions
from pipeline.storage.compression import plain_name
from pipeline.storage.faults import call_patiently
from pipeline.storage.folder import Folder

# What lies beside the texts of published corpora: described in docs/input.md.
_ABOUT_THE_DATA = re.compile(
    r"(?:readme|source|licen[cs]e|copying|notice|changelog|citation)(?:\.(?:md|rst|txt|html|cff))?"
    r"|dataset_info\.json|dataset_dict\.json|state\.json|cache-[0-9a-f]+.*\.arrow"
    r"|(?:md5|sha1|sha256|sha512)sums?(?:\.txt)?|.*\.(?:md5|sha1|sha256|sha512)|_success",
    re.IGNORECASE,
)
_MAGIC = re.compile(r"[*?\[]")
_WRITTEN_BY_A_BUILD = """
vocab.txt tokenizer.json vocab.json word_counts.parquet tokens.json prefixes.rows manifest.json
report.html tokens/0-00000.tokens train/L128/pass-00/shard-00000.tar
"""


@dataclass
class Listing:
    """Sizes of files found, by path or by URL where they are elsewhere; and those left out."""

    sizes: dict[str, int] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def list_matches(pattern: str, storage_options: StorageOptions = None) -> Listing:
    """What a pattern stands for; what exists under the very name is no glob."""
    place = Folder(pattern, storage_options)
    filesystem = place.filesystem
    filesystem.invalidate_cache()
    found: Listing = call_patiently(pattern, lambda: _list(place), filesystem=filesystem)
    for path in (*found.sizes, *found.left_out):
        _refuse_name(path, is_local=place.is_local)
    if place.is_local:
        return found
    if not found.sizes:
        place.refuse_absent_bucket()
    name = filesystem.unstrip_protocol
    sizes = {name(each): size for each, size in found.sizes.items()}
    return Listing(sizes, [*map(name, found.left_out)])


def _refuse_name(path: str, *, is_local: bool) -> None:
    """Refuses a file whose name cannot be written as text, or would be read as another file's.

    Raises:
        ValueError: The name is not UTF-8, or has a part with another meaning in a URL.
    """
    try:
        path.encode()
    except UnicodeEncodeError as error:
        shown = path.encode(errors="surrogateescape").decode(errors="backslashreplace")
        cure = "rename it, for example by `convmv -f latin1 -t utf8 --notest FILE`"
        raise ValueError(f"{shown}: the file's name is no UTF-8; {cure}") from error
    marks = ("::",) if is_local else ("::", "?versionId=")
    for mark in marks:
        if mark in path:
            found = f"{mark!r} in a file's name is taken for a part of a URL"
            raise ValueError(f"{path}: {found}; rename the file")


def would_list(pattern: str, folder: str, storage_options: StorageOptions = None) -> bool:
    """Whether a pattern stands for files that a build would write into a folder."""
    place, output = Folder(pattern, storage_options), Folder(folder, storage_options)
    path, below = place.path, output.path
    if place.filesystem.unstrip_protocol("") != output.filesystem.unstrip_protocol(""):
        return False
    if place.is_local:
        path, below = (_real(each) for each in (path, below))
    if place.ask(lambda: place.filesystem.isdir(path)):
        return f"{below}/".startswith(f"{path}/")
    matches = re.compile(glob_translate(path)).match
    written = (f"{below}/{name}" for name in _WRITTEN_BY_A_BUILD.split())
    return bool(_MAGIC.search(path)) and any(map(matches, written))


def _real(path: str) -> str:
    fixed = _fixed_folder(path)
    return os.path.realpath(fixed) + path.removeprefix(fixed)


def _fixed_folder(path: str) -> str:
    found = _MAGIC.search(path)
    return path[: found.start()].rpartition("/")[0] if found and not os.path.lexists(path) else path


def _list(place: Folder) -> Listing:
    filesystem, path = place.filesystem, place.path
    if filesystem.isfile(path):
        return Listing({path: int(filesystem.info(path)["size"])})
    if not filesystem.isdir(path):
        return Listing(_sizes_of_glob(place))
    found = Listing()
    below = dict(_walk(path)) if place.is_local else _sizes(filesystem.find(path, detail=True))
    for name, size in sorted(below.items()):
        parts = PurePosixPath(name).relative_to(path).parts
        if any(part.startswith(".") for part in parts):
            continue
        if _ABOUT_THE_DATA.fullmatch(plain_name(parts[-1])):
            found.left_out.append(name)
        else:
            found.sizes[name] = size
    return found


def _sizes_of_glob(place: Folder) -> dict[str, int]:
    """On local disks by a walk of our own, with the same meaning: fsspec's knows no links."""
    path = place.path
    if not place.is_local:
        return _sizes(place.filesystem.glob(path, detail=True))
    if not _MAGIC.search(path):
        return {}
    folder = _fixed_folder(path)
    most = None if "**" in path else path.removeprefix(folder).count("/")
    matches = re.compile(glob_translate(path)).match
    return {name: size for name, size in _walk(folder, most) if matches(name)}


def _sizes(found: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(info["size"]) for name, info in found.items() if info["type"] == "file"}


def _walk(
    folder: str, most_levels: int | None = None, above: frozenset[str] = frozenset()
) -> Iterator[tuple[str, int]]:
    """Regular files below a local folder, through links but for those to a folder above."""
    real = os.path.realpath(folder)
    if real in above or not os.path.isdir(folder):
        return
    with os.scandir(folder or "/") as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        path = f"{folder}/{entry.name}"
        if entry.is_file():
            yield path, entry.stat().st_size
        elif entry.is_dir():
            if most_levels is None or most_levels > 1:
                yield from _walk(path, most_levels and most_levels - 1, above | {real})
        elif entry.is_symlink() and not entry.name.startswith("."):
            found = f"a link to {os.readlink(path)}, which does not exist"
            raise FileNotFoundError(f"{path}: {found}; mend the link or remove it")
