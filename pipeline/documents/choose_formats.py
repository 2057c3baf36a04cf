"""Chooses the format of each file of a source, if the user asked for `auto`.

The name and the first bytes of a file decide. Plain text is harder: it may be one document per
file, or many documents of one sentence per line with blank lines between them. This is decided for
all plain texts of a source together. If their first lines are no clear evidence, the user has to
give the format, because nobody would notice the wrong one.
"""

from collections.abc import Sequence

from pipeline.documents.detect import detect_format
from pipeline.documents.files import TAIL_BLOCK_BYTES, StorageOptions, read_head
from pipeline.documents.formats import FORMATS
from pipeline.documents.kinds import refuse_archive
from pipeline.documents.lines import head_to_text
from pipeline.documents.sentence_lines import SENTENCE_LINES, WHICH_FLAG, Seen, look_at_lines
from pipeline.storage.ahead import map_ahead
from pipeline.storage.archives import archive_kind

_NUM_FILES_LOOKED_AT = 64
_LEAST_BLOCKS_OF_MANY_FILES = 10  # groups of lines between blank lines, on average over the files

File = tuple[str, int]
"""URL and size in bytes."""


def choose_formats(
    files: Sequence[File], text_format: str, wrapping: str, storage_options: StorageOptions = None
) -> list[str]:
    """Returns the name of the format of each file.

    If the user gave a format, all files have it. Otherwise each file is looked at. The result for
    an archive is then "auto", because the format of each member is detected when it is read.

    Args:
        files: All files of a source.
        text_format: The format that the user gave, or "auto".
        wrapping: How paragraphs of plain text end, one of `WRAPPINGS`. With any value but "auto",
            plain text is never taken for a file of one sentence per line.
        storage_options: Options of the files' filesystem.

    Raises:
        ValueError: There is no such format, a file cannot be read, or it is not clear whether plain
            texts have one sentence per line.
    """
    if text_format in FORMATS:
        return [text_format] * len(files)
    if text_format != "auto":
        raise ValueError(f"format is {text_format!r}, expected auto or one of {', '.join(FORMATS)}")
    formats = list(map_ahead(lambda file: _detect(file, storage_options), files))
    texts = [file for file, name in zip(files, formats, strict=True) if name == "text" and file[1]]
    if wrapping == "auto" and texts and _has_sentence_lines(texts, storage_options):
        return [SENTENCE_LINES if name == "text" else name for name in formats]
    return formats


def _detect(file: File, storage_options: StorageOptions) -> str:
    """Returns the name of a file's format, as its name and its first bytes show it.

    For an archive it is "auto", because each of its members may have another format.
    """
    url, size = file
    head = read_head(url, size, storage_options)
    kind = archive_kind(url)
    if kind:
        refuse_archive(url, kind, head)
        return "auto"
    return detect_format(url, head)


def _has_sentence_lines(files: Sequence[File], storage_options: StorageOptions) -> bool:
    """Returns whether plain texts have one sentence per line, and blank lines between documents.

    The first lines of at most 64 files are looked at. The result is the same for all files.

    Args:
        files: All plain texts of a source that are not empty.
        storage_options: Options of the files' filesystem.

    Raises:
        ValueError: Some files look like this, but it is not certain, or other files do not.
    """
    sample = files[:: -(-len(files) // _NUM_FILES_LOOKED_AT)]
    looks = map_ahead(lambda file: _look(*file, storage_options), sample)
    seen = {url: look for (url, _), look in zip(sample, looks, strict=True)}
    likely = {url: look for url, look in seen.items() if look.is_likely}
    if not likely:
        return False

    mean_blocks = sum(look.blocks for look in likely.values()) / len(likely)
    is_sure = all(look.is_sure for look in likely.values())
    has_other_text = any(look.has_enough and not look.is_likely for look in seen.values())
    has_many_blocks = len(files) == 1 or mean_blocks >= _LEAST_BLOCKS_OF_MANY_FILES
    if is_sure and not has_other_text and has_many_blocks:
        return True

    url, look = min(likely.items(), key=lambda item: (item[1].is_sure, item[0]))
    among = f", as in {len(likely):,} of {len(seen):,} files looked at" * (len(seen) > 1)
    raise ValueError(f"{url}: its beginning has {look}{among}; {WHICH_FLAG}")


def _look(url: str, size: int, storage_options: StorageOptions) -> Seen:
    """Counts lines, and lines that look like one sentence, in the beginning of a file."""
    head = read_head(url, size, storage_options, TAIL_BLOCK_BYTES + 1)
    return look_at_lines(head_to_text(head), is_whole=len(head) <= TAIL_BLOCK_BYTES)
