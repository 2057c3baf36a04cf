"""Finds the input files, and cuts them into parts, one for each task."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import PurePosixPath

from pipeline.documents.choose_formats import choose_formats
from pipeline.documents.files import FileRange, StorageOptions
from pipeline.documents.formats import may_be_cut
from pipeline.documents.listing import list_matches
from pipeline.documents.wrapping import WRAPPINGS
from pipeline.storage.archives import is_archive
from pipeline.storage.compression import is_compressed
from pipeline.storage.secret_values import identify

_LEAST_PARTS = 32
_SMALLEST_PART_BYTES = 2**20
_COMPRESSION_RATIO = 4  # bytes of English text per byte that zstd writes, roughly
_EXPECTED = (
    "expected a file, a folder with files or a glob such as 'corpus/**/*.jsonl.zst' (quoted, so"
    " that the shell leaves it alone)"
)


@dataclass(frozen=True)
class InputFile:
    """A file of the input.

    Attributes:
        url: The file's URL, or its path on a local disk.
        size: The file's size in bytes, as stored.
        source: The number of the source that the file belongs to.
    """

    url: str
    size: int
    source: int = 0


@dataclass(frozen=True)
class Part:
    """The input of one task: a range of a large file, or several small files.

    Attributes:
        ranges: The byte ranges. A small file is one range.
        source: The number of the source that all the files belong to.
    """

    ranges: tuple[FileRange, ...]
    source: int = 0

    @property
    def key(self) -> str:
        """A hash that identifies the part, as 32 hex digits.

        It covers the URL, size and format of each file, the bounds of the ranges, and the number of
        the source.
        """
        lines = [
            f"{identify(r.url)}\t{r.start}\t{r.end}\t{r.size}\t{r.format}\n" for r in self.ranges
        ]
        lines += [f"source\t{self.source}\n"] if self.source else []
        return blake2b("".join(lines).encode(), digest_size=16).hexdigest()

    @property
    def text_bytes(self) -> int:
        """Number of bytes of text, which is an estimate if files are compressed."""
        return sum(r.num_bytes * _ratio(r.url) for r in self.ranges)


def find_inputs(
    patterns: Sequence[str],
    storage_options: StorageOptions = None,
    left_out: list[str] | None = None,
) -> list[InputFile]:
    """Returns the files that some patterns match, each file once, sorted by URL.

    Args:
        patterns: Paths, folders and globs (with `**` as well), at any fsspec URL. A folder stands
            for every file below it, except for hidden files and files that only describe the data
            (docs/input.md).
        storage_options: Options of the filesystem.
        left_out: A list to which the files that only describe the data are appended, or None.

    Raises:
        FileNotFoundError: A pattern matches no file.
        ValueError: All files are empty, or a file has a name that cannot be used.
    """
    sizes: dict[str, int] = {}
    for pattern in patterns:
        listing = list_matches(pattern, storage_options)
        if not listing.sizes:
            names = ", ".join(sorted(PurePosixPath(url).name for url in listing.left_out))
            but = f" but {names}, which a folder does not stand for" if names else ""
            raise FileNotFoundError(f"{pattern}: found no file{but}; {_EXPECTED}")
        sizes |= listing.sizes
        if left_out is not None:
            left_out += listing.left_out
    if not any(sizes.values()):
        found = f"found {len(sizes)} file(s), all empty"
        raise ValueError(f"{', '.join(patterns)}: {found}; expected text to read")
    return [InputFile(url, sizes[url]) for url in sorted(sizes)]


def choose_part_bytes(files: Sequence[InputFile], most: int) -> int:
    """Chooses how many bytes of text each part of the input should have at most.

    The result is `most` for a large input. For a small one it is 1/32 of the input, so that there
    are enough parts for all workers, but at least 1 MiB. It does not depend on the number of
    workers.

    Args:
        files: The files of all sources.
        most: The most bytes of text that the user wants in a part.
    """
    text_bytes = sum(file.size * _ratio(file.url) for file in files)
    return min(most, max(_SMALLEST_PART_BYTES, -(-text_bytes // _LEAST_PARTS)))


def plan_parts(
    files: Sequence[InputFile],
    text_format: str,
    part_bytes: int,
    storage_options: StorageOptions = None,
    wrapping: str = "auto",
) -> list[Part]:
    """Cuts large files of one source into ranges, and puts small files together into parts.

    Args:
        files: The files, all of one source.
        text_format: Their format, or "auto".
        part_bytes: The most bytes of text in a part; a compressed byte counts as four. A file that
            cannot be cut, such as most compressed files, is a part however large it is. This
            number changes speed and memory, but never the documents.
        storage_options: Options of the filesystem.
        wrapping: How paragraphs of plain text end, one of `WRAPPINGS`.

    Raises:
        ValueError: A file cannot be read, or it is not clear whether plain texts are one document
            or many (see `choose_formats`).
    """
    if wrapping not in WRAPPINGS:
        raise ValueError(f"wrapping is {wrapping!r}, expected one of {', '.join(WRAPPINGS)}")
    ordered = sorted(files, key=lambda file: file.url)
    source = ordered[0].source if ordered else 0
    assert all(file.source == source for file in ordered), "files of several sources in one plan"
    sizes = [(file.url, file.size) for file in ordered]
    formats = choose_formats(sizes, text_format, wrapping, storage_options)
    ranges: list[FileRange] = []
    for (url, size), name in zip(sizes, formats, strict=True):
        ranges += _cut_file(url, size, name, part_bytes, wrapping)
    return _gather(ranges, source, part_bytes)


def cut_again(parts: Sequence[Part], part_bytes: int) -> list[Part]:
    """Cuts the files of a source again, into parts of another size.

    The result is what `plan_parts` returns for this `part_bytes`. But no file is read, because the
    formats of the files are known from the given parts.

    Args:
        parts: All parts of one source.
        part_bytes: The most bytes of text in a part.
    """
    by_url = {file_range.url: file_range for part in parts for file_range in part.ranges}
    ranges: list[FileRange] = []
    for url, known in sorted(by_url.items()):
        ranges += _cut_file(url, known.size, known.format, part_bytes, known.wrapping)
    return _gather(ranges, parts[0].source, part_bytes)


def _gather(ranges: Iterable[FileRange], source: int, part_bytes: int) -> list[Part]:
    """Groups ranges into parts, in the order of the ranges.

    A part has at most `part_bytes` of text, unless it is a single range that has more.

    Args:
        ranges: The ranges, all of one source.
        source: The number of the source.
        part_bytes: The most bytes of text in a part.
    """
    parts: list[Part] = []
    gathered: list[FileRange] = []
    num_bytes = 0
    for file_range in ranges:
        text_bytes = file_range.num_bytes * _ratio(file_range.url)
        if gathered and num_bytes + text_bytes > part_bytes:
            parts.append(Part(tuple(gathered), source))
            gathered = []
            num_bytes = 0
        gathered.append(file_range)
        num_bytes += text_bytes
    return [*parts, Part(tuple(gathered), source)] if gathered else parts


def _ratio(url: str) -> int:
    """Returns the bytes of text per stored byte: an estimate for compressed files, otherwise 1."""
    return _COMPRESSION_RATIO if is_compressed(url) or is_archive(url) else 1


def _cut_file(
    url: str, size: int, text_format: str, part_bytes: int, wrapping: str
) -> Iterator[FileRange]:
    """Cuts a file into ranges of equal size, each with at most `part_bytes` of text.

    A file that cannot be cut is a single range, however large it is.

    Args:
        url: The file.
        size: The file's size in bytes, as stored.
        text_format: The name of the file's format.
        part_bytes: The most bytes of text in a range.
        wrapping: How paragraphs of plain text end, one of `WRAPPINGS`.
    """
    num_ranges = 1
    if may_be_cut(text_format, url):
        num_ranges = max(1, -(-size * _ratio(url) // part_bytes))
    bounds = (size * number // num_ranges for number in range(num_ranges + 1))
    for start, end in pairwise(bounds):
        yield FileRange(url, start, end, size, text_format, wrapping)
