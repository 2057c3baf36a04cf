"""What the format `auto` means for a file: its name and its first bytes decide together.

1. Kinds that hold no text as they are stop (`pipeline.documents.kinds`, a table).
2. The first format of `pipeline.documents.source.LAYOUTS` whose `detect` knows the file is taken.
3. What is left is text, unless it begins as JSON or XML does, or has zero bytes.
"""

from pipeline.documents import kinds, lines
from pipeline.documents.formats import FORMATS
from pipeline.documents.jsonl import refuse_json
from pipeline.documents.records import Beginning
from pipeline.storage.compression import plain_suffix


def detect_format(url: str, head: bytes) -> str:
    """Returns the name of the format of a file.

    Args:
        url: The file; of an archive's member ARCHIVE/NAME.
        head: The first bytes, decompressed, some KB if there are so many.

    Raises:
        ValueError: It is of a kind that is not read; the message says what makes text of it.
    """
    kinds.refuse_kinds(url, head)
    beginning = Beginning(plain_suffix(url), head, lines.head_to_utf8(head).lstrip())
    for name, layout in FORMATS.items():
        if layout.detect and layout.detect(beginning):
            return name
    refuse_json(url, beginning)
    kinds.refuse_markup(url, beginning.text)
    if head[:2] not in lines.UTF16:
        lines.refuse_other_encodings(head, url)
        kinds.refuse_zero_bytes(url, head)
    return "text"
