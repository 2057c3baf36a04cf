"""Input files of any layout and place to documents: found, cut into parts, read as a stream.

`parts` says which bytes a task reads, `read` reads them; `formats` knows the layouts and `files` bytes and lines. May
import: stdlib, zstandard, pipeline.shards.storage (fsspec).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """One article or book.

    Attributes:
        text: As it stands in the input; may be empty.
        where: "FILE:LINE", "FILE" or "FILE, byte N" it starts at, for messages only.
    """

    text: str
    where: str
