"""What the format `auto` means for the files of a source, by names and first bytes.

Whether a plain text is one document or many with blank lines between them is decided for a source,
never for a file alone, and where the evidence does not suffice the user has to say it: both errors
would be silent.
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
_LEAST_BLOCKS_OF_MANY_FILES = 10  # on average

File = tuple[str, int]  # URL and size


def choose_formats(
    files: Sequence[File], text_format: str, wrapping: str, storage_options: StorageOptions = None
) -> list[str]:
    """The format of each file; of an archive, whose members are looked at later, it stays auto."""
    if text_format in FORMATS:
        return [text_format] * len(files)
    if text_format != "auto":
        raise ValueError(f"format is {text_format!r}, expected auto or one of {', '.join(FORMATS)}")
    found = list(map_ahead(lambda file: _detect(file, storage_options), files))
    texts = [file for file, own in zip(files, found, strict=True) if own == "text" and file[1]]
    if wrapping == "auto" and texts and _has_sentence_lines(texts, storage_options):
        return [SENTENCE_LINES if own == "text" else own for own in found]
    return found


def _detect(file: File, storage_options: StorageOptions) -> str:
    url, size = file
    head = read_head(url, size, storage_options)
    if kind := archive_kind(url):
        refuse_archive(url, kind, head)
        return "auto"
    return detect_format(url, head)


def _has_sentence_lines(files: Sequence[File], storage_options: StorageOptions) -> bool:
    """Whether texts hold a sentence a line and blank lines between documents, by some of them."""
    looked_at = files[:: -(-len(files) // _NUM_FILES_LOOKED_AT)]
    looks = map_ahead(lambda file: _look(*file, storage_options), looked_at)
    seen = {url: look for (url, _), look in zip(looked_at, looks, strict=True)}
    likely = {url: own for url, own in seen.items() if own.is_likely}
    if not likely:
        return False
    blocks = sum(own.blocks for own in likely.values()) / len(likely)
    is_sure = all(own.is_sure for own in likely.values())
    is_plain = any(own.has_enough and not own.is_likely for own in seen.values())
    if is_sure and not is_plain and (len(files) == 1 or blocks >= _LEAST_BLOCKS_OF_MANY_FILES):
        return True
    url, own = min(likely.items(), key=lambda each: (each[1].is_sure, each[0]))
    among = f", as in {len(likely):,} of {len(seen):,} files looked at" * (len(seen) > 1)
    raise ValueError(f"{url}: its beginning has {own}{among}; {WHICH_FLAG}")


def _look(url: str, size: int, storage_options: StorageOptions) -> Seen:
    head = read_head(url, size, storage_options, TAIL_BLOCK_BYTES + 1)
    return look_at_lines(head_to_text(head), is_whole=len(head) <= TAIL_BLOCK_BYTES)
