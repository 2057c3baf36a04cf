"""documents.ids of a finished dataset: which documents it holds, also after its tokens/ is gone.

Ids ascend, 16 bytes each (of several sources with a byte of the source's number): the very bytes
that the dataset's documents_hash covers, so every reading is checked against its manifest.
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
    """Writes documents.ids of a dataset from its pieces in order, through a local file."""
    with tempfile.NamedTemporaryFile(prefix="beambert-ids-") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        folder.write(DOCUMENT_IDS, Path(file.name))


def open_excluded(url: str, storage_options: Mapping[str, Any] | None = None) -> Dataset:
    """A finished dataset whose documents shall be left out of another."""
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
    """The ids in 256 groups by their first byte, as fixed strings of 16 bytes.

    Raises ValueError at the end where they are not the documents of the dataset's manifest.
    """
    where, row_bytes = dataset.locate(DOCUMENT_IDS), document_id_bytes(dataset.manifest)
    size = dataset.folder.size(DOCUMENT_IDS)
    digest, held, position = blake2b(digest_size=32), b"", 0
    for group in range(NUM_GROUPS):
        while position < size and (not held or held[-row_bytes] <= group):
            stop = min(size, position + _ROWS_AT_ONCE * row_bytes)
            chunk = dataset.folder.read_range(DOCUMENT_IDS, position, stop)
            digest.update(chunk)
            held, position = held + chunk, stop
        if len(held) % row_bytes:
            break
        rows = np.frombuffer(held, np.uint8).reshape(-1, row_bytes)
        count = int(np.searchsorted(rows[:, 0], group, side="right"))
        yield np.ascontiguousarray(rows[:count, :_ID_BYTES]).view(f"S{_ID_BYTES}").reshape(count)
        held = held[count * row_bytes :]
    if held or digest.hexdigest() != dataset.manifest.settings["documents_hash"]:
        raise ValueError(
            f"{where}: not the documents of {dataset.url}, by the documents_hash of its manifest;"
            " delete the file and run the command that built the dataset once more"
        )
