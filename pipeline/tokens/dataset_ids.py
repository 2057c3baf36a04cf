"""Writes and reads documents.ids, which lists the documents of a finished dataset.

The file stays when the folder tokens/ of the dataset is deleted, so that another build can leave
out the documents of this one. It holds the ids of the documents in ascending order, 16 bytes each.
If the dataset has several sources, one byte with the number of the document's source follows each
id. documents_hash in the manifest is the hash of these bytes, by which they are checked when they
are read.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.shards.dataset import Dataset, open_dataset
from pipeline.shards.manifest import DOCUMENT_IDS, document_id_bytes
from pipeline.storage.folder import Folder
from pipeline.tokens.grouped_rows import NUM_GROUPS

_ID_BYTES = 16
_ROWS_AT_ONCE = 1 << 16


def write_document_ids(folder: Folder, chunks: Iterable[bytes]) -> None:
    """Writes documents.ids of a dataset, through a local file.

    Args:
        folder: The folder of the dataset.
        chunks: The content of the file, in order.
    """
    with tempfile.NamedTemporaryFile(prefix="beambert-ids-") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        folder.write(DOCUMENT_IDS, Path(file.name))


def open_with_ids(url: str, storage_options: Mapping[str, Any] | None = None) -> Dataset:
    """Opens a finished dataset that has a list of its documents, documents.ids.

    Args:
        url: The folder of the dataset.
        storage_options: Options of the URL's filesystem.

    Raises:
        FileNotFoundError: There is no finished dataset, or it has no documents.ids.
        ValueError: Its manifest has no documents_hash, or is damaged.
    """
    dataset = open_dataset(url, storage_options)
    if not dataset.folder.exists(DOCUMENT_IDS):
        raise FileNotFoundError(
            f"{dataset.locate(DOCUMENT_IDS)} is missing, so which documents {url} holds is not"
            " known: run the command that built it once more, which writes the file and leaves its"
            " shards alone"
        )
    if "documents_hash" not in dataset.manifest.settings:
        raise ValueError(
            f"{url}: its manifest has no documents_hash, which {DOCUMENT_IDS} is checked by;"
            " rebuild it"
        )
    return dataset


def iterate_ids(dataset: Dataset) -> Iterator[npt.NDArray[np.bytes_]]:
    """Yields the ids of a dataset's documents in 256 groups by their first byte.

    Each group is an array of fixed strings of 16 bytes, ascending. The file is read lazily, and
    its hash is compared at the end.

    Args:
        dataset: A dataset that `open_with_ids` opened.

    Raises:
        ValueError: After the last group, the ids are not those of the manifest's documents_hash.
    """
    where = dataset.locate(DOCUMENT_IDS)
    row_bytes = document_id_bytes(dataset.manifest)
    size = dataset.folder.size(DOCUMENT_IDS)
    digest = blake2b(digest_size=32)
    pending = b""  # rows that were read, and belong to this group or a later one
    position = 0
    for group in range(NUM_GROUPS):
        # The group is complete once the last row that was read belongs to a later one.
        while position < size and (not pending or pending[-row_bytes] <= group):
            stop = min(size, position + _ROWS_AT_ONCE * row_bytes)
            chunk = dataset.folder.read_range(DOCUMENT_IDS, position, stop)
            digest.update(chunk)
            pending += chunk
            position = stop
        if len(pending) % row_bytes:
            break
        rows = np.frombuffer(pending, np.uint8).reshape(-1, row_bytes)
        count = int(np.searchsorted(rows[:, 0], group, side="right"))
        yield np.ascontiguousarray(rows[:count, :_ID_BYTES]).view(f"S{_ID_BYTES}").reshape(count)
        pending = pending[count * row_bytes :]

    if pending or digest.hexdigest() != dataset.manifest.settings["documents_hash"]:
        raise ValueError(
            f"{where}: not the documents of {dataset.url}, by the documents_hash of its manifest;"
            " delete the file and run the command that built the dataset once more"
        )
