"""Files of labelled text: their content and what their names say.

Files may be any fsspec URL, and end in .zst or .gz.
"""

import gzip
import io
import zlib
from pathlib import PurePosixPath

import zstandard

from pipeline.storage.folder import Folder


def read_text(path: str) -> str:
    """The content of a file, decompressed where its name ends in .zst or .gz.

    Raises:
        FileNotFoundError: No such file.
        ValueError: Damaged, or not UTF-8; says at which line.
    """
    folder, name = Folder.of_file(path)
    data = folder.read(name)
    try:
        if path.endswith(".zst"):
            data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read()
        elif path.endswith(".gz"):
            data = gzip.decompress(data)
    except (zstandard.ZstdError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: cannot be decompressed ({error}); copy it again") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{line}: not UTF-8 ({error.reason}); save the file as UTF-8") from error


def plain_name(path: str) -> str:
    """A file's name without folders, compression and extension: train of data/train.tsv.zst."""
    name = PurePosixPath(path.replace("\\", "/")).name
    return name.removesuffix(".zst").removesuffix(".gz").rsplit(".", 1)[0]


def data_format(path: str) -> str:
    """The extension in lower case, without compression: tsv of data/train.tsv.zst."""
    return path.removesuffix(".zst").removesuffix(".gz").rpartition(".")[2].lower()
