"""Input files of any layout and place to documents: found, cut into parts, read as a stream.

`parts` says which bytes a task reads and `read` reads them: `files` and `compression` give blocks, `encoding` and
`lines` lines of UTF-8, one module a layout records of them, and `formats` puts these together. May import: stdlib,
zstandard, pipeline.shards.storage (fsspec).
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
