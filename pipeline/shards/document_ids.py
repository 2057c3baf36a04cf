"""Reads the rows of documents.ids, which lists the documents of a dataset (docs/format.md, 3)."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pipeline.shards.block import Array
from pipeline.shards.dataset import Dataset
from pipeline.shards.manifest import DOCUMENT_IDS, document_id_bytes

_ROWS_AT_ONCE = 1 << 16


def iterate_id_rows(dataset: Dataset) -> Iterator[Array]:
    """Yields the rows of documents.ids in order, some at a time; the file is read lazily.

    Args:
        dataset: A dataset that has the file.

    Yields:
        [R, W] uint8: R rows of W bytes. The first 16 bytes of a row are the id of a document. If
        the dataset has several sources, the 17th is the number of the document's source.

    Raises:
        FileNotFoundError: There is no such file.
        StorageError: The store failed in every attempt.
        ValueError: The file ends inside a row.
    """
    row_bytes = document_id_bytes(dataset.manifest)
    size = dataset.folder.size(DOCUMENT_IDS)
    if size % row_bytes:
        raise ValueError(
            f"{dataset.locate(DOCUMENT_IDS)} has {size} bytes, expected rows of {row_bytes}; delete"
            " the file and run the command that built the dataset once more"
        )
    for start in range(0, size, _ROWS_AT_ONCE * row_bytes):
        stop = min(size, start + _ROWS_AT_ONCE * row_bytes)
        data = dataset.folder.read_range(DOCUMENT_IDS, start, stop)
        yield np.frombuffer(data, np.uint8).reshape(-1, row_bytes)


def first_64_bits(rows: Array) -> Array:
    """Returns the first 64 bits of the id in each row, which the instances of a dataset have too.

    Args:
        rows: [R, W] uint8, as `iterate_id_rows` yields them.

    Returns:
        [R] uint64.
    """
    return np.ascontiguousarray(rows[:, :8]).view(">u8").reshape(-1).astype(np.uint64)


def are_among(ids: Array, documents: Array) -> npt.NDArray[np.bool_]:
    """Returns whether each of some ids is among some documents: [R] bool.

    Unlike `np.isin`, it does not sort the documents, which may be far more than the ids.

    Args:
        ids: [R] uint64, the first 64 bits of ids, in any order.
        documents: [Q] uint64, ascending.
    """
    if not len(documents):
        return np.zeros(len(ids), np.bool_)
    places = np.minimum(np.searchsorted(documents, ids), len(documents) - 1)
    return np.equal(documents[places], ids, dtype=np.bool_)
