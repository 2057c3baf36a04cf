"""Files of labelled text at any fsspec URL, compressed or not: their content and what their names say."""

from pathlib import PurePosixPath

from pipeline.storage.compression import decompress, is_compressed
from pipeline.storage.compression import plain_name as uncompressed_name
from pipeline.storage.folder import Folder


def read_text(path: str) -> str:
    """The content of a file, decompressed where its name ends in .zst, .gz, .bz2 or .xz.

    Raises:
        FileNotFoundError: No such file.
        ValueError: Damaged, or not UTF-8; says at which line.
    """
    folder, name = Folder.of_file(path)
    data = folder.read(name)
    if is_compressed(path):
        data = b"".join(decompress([data], path))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}:{line}: not UTF-8 ({error.reason}); save the file as UTF-8"
        ) from error


def plain_name(path: str) -> str:
    """A file's name without folders, compression and extension: train of data/train.tsv.zst."""
    name = PurePosixPath(path.replace("\\", "/")).name
    return uncompressed_name(name).rsplit(".", 1)[0]


def data_format(path: str) -> str:
    """The extension in lower case, without compression: tsv of data/train.tsv.zst."""
    return uncompressed_name(path).rpartition(".")[2].lower()
