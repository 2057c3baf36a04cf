"""Detects the format of a file by its name and its first bytes, if the user gave none (`auto`).

1. Files of a kind that holds no readable text are refused (the table in
   `pipeline.documents.kinds`).
2. Otherwise the first format of `pipeline.documents.source.LAYOUTS` whose `detect` accepts the file
   is taken.
3. Otherwise the file is plain text. It is refused if it begins like JSON or XML, or if it has zero
   bytes.
"""

from pipeline.documents import kinds, lines
from pipeline.documents.formats import FORMATS
from pipeline.documents.jsonl import refuse_json
from pipeline.documents.records import Beginning
from pipeline.storage.compression import plain_suffix


def detect_format(url: str, head: bytes) -> str:
    """Returns the name of the format of a file.

    Args:
        url: The file; ARCHIVE/NAME for a member of an archive.
        head: The first bytes, decompressed: some KB, or the whole of a smaller file.

    Raises:
        ValueError: Files of this kind cannot be read; the message says how to make text of it.
    """
    kinds.refuse_kinds(url, head)
    beginning = Beginning(plain_suffix(url), head, lines.head_to_utf8(head).lstrip())
    for name, layout in FORMATS.items():
        if layout.detect and layout.detect(beginning):
            if layout.is_text:
                lines.refuse_other_encodings(head, url)
            return name
    refuse_json(url, beginning)
    kinds.refuse_markup(url, beginning.text)
    if head[:2] not in lines.UTF16:
        lines.refuse_other_encodings(head, url)
        kinds.refuse_zero_bytes(url, head)
    return "text"
