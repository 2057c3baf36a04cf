"""Which files the input is, and which bytes of them one task reads."""

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
_COMPRESSION_RATIO = 4  # of English text by zstd, about
_EXPECTED = (
    "expected a file, a folder with files or a glob such as 'corpus/**/*.jsonl.zst' (quoted, so"
    " that the shell leaves it alone)"
)


@dataclass(frozen=True)
class InputFile:
    """A file of the input: its URL, or path on local disks, bytes as stored, source's number."""

    url: str
    size: int
    source: int = 0


@dataclass(frozen=True)
class Part:
    """What one task reads: a range of a large file, or some small files, all of one source."""

    ranges: tuple[FileRange, ...]
    source: int = 0

    @property
    def key(self) -> str:
        """32 hex digits, equal for equal ranges, sizes, formats and source numbers."""
        lines = [
            f"{identify(r.url)}\t{r.start}\t{r.end}\t{r.size}\t{r.format}\n" for r in self.ranges
        ]
        lines += [f"source\t{self.source}\n"] if self.source else []
        return blake2b("".join(lines).encode(), digest_size=16).hexdigest()

    @property
    def text_bytes(self) -> int:
        """Bytes of text, estimated where they are compressed."""
        return sum(each.num_bytes * _ratio(each.url) for each in self.ranges)


def find_inputs(
    patterns: Sequence[str],
    storage_options: StorageOptions = None,
    left_out: list[str] | None = None,
) -> list[InputFile]:
    """The files of paths, folders and globs (`**` too) at any fsspec URL, by URL, each once.

    A folder stands for every file below it but hidden ones and those that only speak of the data
    (docs/input.md), which `left_out` takes. Raises FileNotFoundError where a pattern matches no
    file, ValueError where all files are empty.
    """
    found: dict[str, int] = {}
    for pattern in patterns:
        listing = list_matches(pattern, storage_options)
        if not listing.sizes:
            names = ", ".join(sorted(PurePosixPath(url).name for url in listing.left_out))
            but = f" but {names}, which a folder does not stand for" if names else ""
            raise FileNotFoundError(f"{pattern}: found no file{but}; {_EXPECTED}")
        found |= listing.sizes
        if left_out is not None:
            left_out += listing.left_out
    if not any(found.values()):
        what = f"found {len(found)} file(s), all empty"
        raise ValueError(f"{', '.join(patterns)}: {what}; expected text to read")
    return [InputFile(url, found[url]) for url in sorted(found)]


def choose_part_bytes(files: Sequence[InputFile], most: int) -> int:
    """Bytes of text in a part: fewer than `most` where there were less than 32 parts, but 1 MiB.

    So the workers of a small build end together. The input alone decides, not the workers.
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
    """Cuts files of one source into parts of at most `part_bytes` of text, and gathers small ones.

    Compressed files and those that are one document stay whole, however large; compressed ones
    count four times. `part_bytes` changes speed and memory, never the documents.

    Raises ValueError for plain text that may be one document a file or many.
    """
    if wrapping not in WRAPPINGS:
        raise ValueError(f"wrapping is {wrapping!r}, expected one of {', '.join(WRAPPINGS)}")
    ordered = sorted(files, key=lambda file: file.url)
    source = ordered[0].source if ordered else 0
    assert all(file.source == source for file in ordered), "files of several sources in one plan"
    sizes = [(file.url, file.size) for file in ordered]
    formats = choose_formats(sizes, text_format, wrapping, storage_options)
    found = zip(sizes, formats, strict=True)
    ranges = (r for file, own in found for r in _cut_file(*file, own, part_bytes, wrapping))
    return _gather(ranges, source, part_bytes)


def cut_again(parts: Sequence[Part], part_bytes: int) -> list[Part]:
    """Parts of one source as `plan_parts` would have planned them; nothing is read."""
    files = {each.url: each for part in parts for each in part.ranges}
    found = sorted(files.items())
    ranges = (
        r for url, f in found for r in _cut_file(url, f.size, f.format, part_bytes, f.wrapping)
    )
    return _gather(ranges, parts[0].source, part_bytes)


def _gather(ranges: Iterable[FileRange], source: int, part_bytes: int) -> list[Part]:
    parts: list[Part] = []
    gathered: list[FileRange] = []
    num_bytes = 0
    for file_range in ranges:
        text_bytes = file_range.num_bytes * _ratio(file_range.url)
        if gathered and num_bytes + text_bytes > part_bytes:
            parts.append(Part(tuple(gathered), source))
            gathered, num_bytes = [], 0
        gathered.append(file_range)
        num_bytes += text_bytes
    return [*parts, Part(tuple(gathered), source)] if gathered else parts


def _ratio(url: str) -> int:
    return _COMPRESSION_RATIO if is_compressed(url) or is_archive(url) else 1


def _cut_file(
    url: str, size: int, text_format: str, part_bytes: int, wrapping: str
) -> Iterator[FileRange]:
    """Equal ranges of at most `part_bytes`, or the whole file."""
    num_ranges = max(1, -(-size * _ratio(url) // part_bytes)) if may_be_cut(text_format, url) else 1
    for start, end in pairwise(size * i // num_ranges for i in range(num_ranges + 1)):
        yield FileRange(url, start, end, size, text_format, wrapping)
