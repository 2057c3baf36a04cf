"""Lists the input files that a path, a folder or a glob stands for.

Links are followed. A folder stands for all files below it except for hidden files, and for files
that only describe the data, such as a README.
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

# Files that published corpora have next to their texts. docs/input.md lists them.
_ABOUT_THE_DATA = re.compile(
    r"(?:readme|source|licen[cs]e|copying|notice|changelog|citation)(?:\.(?:md|rst|txt|html|cff))?"
    r"|dataset_info\.json|dataset_dict\.json|state\.json|cache-[0-9a-f]+.*\.arrow"
    r"|(?:md5|sha1|sha256|sha512)sums?(?:\.txt)?|.*\.(?:md5|sha1|sha256|sha512)|_success",
    re.IGNORECASE,
)
_MAGIC = re.compile(r"[*?\[]")
# One file of each kind that a build writes into its folder.
_WRITTEN_BY_A_BUILD = """
vocab.txt tokenizer.json vocab.json word_counts.parquet tokens.json prefixes.rows manifest.json
report.html tokens/0-00000.tokens train/L128/pass-00/shard-00000.tar
"""


@dataclass
class Listing:
    """The files that a pattern stands for.

    Attributes:
        sizes: Size of each file in bytes, by its path on a local disk, or by its URL.
        left_out: Files that only describe the data, which are not read.
    """

    sizes: dict[str, int] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def list_matches(pattern: str, storage_options: StorageOptions = None) -> Listing:
    """Lists the files that a path or a pattern stands for.

    If a file has exactly the name of the pattern, such as "a[1].txt", the result is this file, and
    wildcards have no meaning.

    Args:
        pattern: A path, a folder or a glob, at any fsspec URL.
        storage_options: Options of the filesystem.

    Raises:
        ValueError: A file's name is not UTF-8, or cannot be written as a URL.
        FileNotFoundError: A local link leads nowhere, or a bucket does not exist.
    """
    place = Folder(pattern, storage_options)
    filesystem = place.filesystem
    filesystem.invalidate_cache()
    listing: Listing = call_patiently(pattern, lambda: _list(place), filesystem=filesystem)
    for path in (*listing.sizes, *listing.left_out):
        _refuse_name(path, is_local=place.is_local)
    if place.is_local:
        return listing

    if not listing.sizes:
        place.refuse_absent_bucket()
    to_url = filesystem.unstrip_protocol
    sizes = {to_url(path): size for path, size in listing.sizes.items()}
    return Listing(sizes, [*map(to_url, listing.left_out)])


def _refuse_name(path: str, *, is_local: bool) -> None:
    """Refuses a file with a name by which it could not be opened again.

    Args:
        path: The path of the file.
        is_local: Whether the file is on a local disk.

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
    """Returns whether an input pattern would match files that a build writes into a folder.

    If so, a later build would read the output of an earlier one as its input.

    Args:
        pattern: A path, a folder or a glob of the input.
        folder: The folder of the build.
        storage_options: Options of the filesystem.
    """
    place = Folder(pattern, storage_options)
    output = Folder(folder, storage_options)
    path = place.path
    output_path = output.path
    if place.filesystem.unstrip_protocol("") != output.filesystem.unstrip_protocol(""):
        return False

    if place.is_local:
        path = _resolve_links(path)
        output_path = _resolve_links(output_path)
    if place.ask(lambda: place.filesystem.isdir(path)):
        return f"{output_path}/".startswith(f"{path}/")
    matches = re.compile(glob_translate(path)).match
    written = (f"{output_path}/{name}" for name in _WRITTEN_BY_A_BUILD.split())
    return bool(_MAGIC.search(path)) and any(map(matches, written))


def _resolve_links(path: str) -> str:
    """Returns a path or a glob in which links are resolved, up to the first wildcard."""
    fixed = _fixed_folder(path)
    return os.path.realpath(fixed) + path.removeprefix(fixed)


def _fixed_folder(path: str) -> str:
    """Returns the folder before the first wildcard of a glob: "a/b" for "a/b/c*/d.txt".

    A path is returned unchanged if it has no wildcard, or if a file or folder has this very name.
    """
    wildcard = _MAGIC.search(path)
    if not wildcard or os.path.lexists(path):
        return path
    return path[: wildcard.start()].rpartition("/")[0]


def _list(place: Folder) -> Listing:
    """Lists a file, the files below a folder, or the files that a glob matches.

    Args:
        place: The file, folder or glob, with its filesystem. Files are listed by their paths in
            this filesystem, not by URLs.
    """
    filesystem = place.filesystem
    path = place.path
    if filesystem.isfile(path):
        return Listing({path: int(filesystem.info(path)["size"])})
    if not filesystem.isdir(path):
        return Listing(_sizes_of_glob(place))

    listing = Listing()
    sizes = dict(_walk(path)) if place.is_local else _sizes(filesystem.find(path, detail=True))
    for name, size in sorted(sizes.items()):
        parts = PurePosixPath(name).relative_to(path).parts
        if any(part.startswith(".") for part in parts):
            continue
        if _ABOUT_THE_DATA.fullmatch(plain_name(parts[-1])):
            listing.left_out.append(name)
        else:
            listing.sizes[name] = size
    return listing


def _sizes_of_glob(place: Folder) -> dict[str, int]:
    """Returns the sizes of the files that match a glob, by path.

    On local disks, fsspec's own glob does not follow links to folders. So local folders are walked
    here, and the paths are matched with fsspec's translation of the glob.
    """
    path = place.path
    if not place.is_local:
        return _sizes(place.filesystem.glob(path, detail=True))
    if not _MAGIC.search(path):
        return {}
    folder = _fixed_folder(path)
    most = None if "**" in path else path.removeprefix(folder).count("/")
    matches = re.compile(glob_translate(path)).match
    return {name: size for name, size in _walk(folder, most) if matches(name)}


def _sizes(details: Mapping[str, Any]) -> dict[str, int]:
    """Returns the sizes of the files in a listing of fsspec, by path; folders are left out.

    Args:
        details: What fsspec's `find` or `glob` returns with `detail=True`.
    """
    return {path: int(info["size"]) for path, info in details.items() if info["type"] == "file"}


def _walk(
    folder: str, most_levels: int | None = None, above: frozenset[str] = frozenset()
) -> Iterator[tuple[str, int]]:
    """Yields the path and the size in bytes of every file below a local folder, ordered by name.

    Links are followed, except for links to a folder that contains them, which would never end.

    Args:
        folder: The folder.
        most_levels: How many levels of folders are read. 1 means the folder without its
            subfolders, and None means all levels.
        above: Real paths of the folders that contain this one, up to the folder of the first call.

    Raises:
        FileNotFoundError: A link leads nowhere, and its name does not begin with a dot.
    """
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
