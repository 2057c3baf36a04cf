"""Checks that a dataset holds none of some documents, for `verify --absent`."""

from collections.abc import Iterator

import numpy as np

from pipeline.shards.block import Block
from pipeline.shards.dataset import Dataset
from pipeline.shards.document_ids import are_among
from pipeline.shards.document_list import find_listed
from pipeline.shards.manifest import DOCUMENT_IDS
from pipeline.shards.records import Shard
from pipeline.shards.redactions import is_redacted
from pipeline.shards.verify import Finding

_TEXT_FOLDERS = ("tokens/", "rejected/")
"""Folders of a build that hold the text of documents. A redacted dataset has none of them."""
_CURE = "`python -m pipeline redact` makes a dataset without it"


class AbsentDocuments:
    """Finds the instances and ids of documents that must not be in a dataset.

    Call the object with every block of the dataset, in any order and from any number of threads.
    """

    def __init__(self, dataset: Dataset, documents: tuple[int, ...]) -> None:
        """Keeps the arguments; nothing is read yet.

        Args:
            dataset: The dataset.
            documents: The first 64 bits of the documents' ids.
        """
        self._dataset = dataset
        self._documents = np.unique(np.array(documents, np.uint64))

    def __call__(self, _: Shard, block: Block) -> Iterator[str]:
        """Yields a message if an instance of a block has text of one of the documents."""
        is_a = are_among(block.document_a, self._documents)
        is_b = are_among(block.document_b, self._documents)
        rows = np.flatnonzero(is_a | is_b)
        if len(rows):
            first = int(rows[0])
            document = block.document_a[first] if is_a[first] else block.document_b[first]
            yield (
                f"{len(rows):,} instance(s) hold a document that must be absent, the first is row"
                f" {first}: {int(document):016x}; {_CURE}"
            )

    def findings(self) -> Iterator[Finding]:
        """Yields a finding if documents.ids lists one of the documents.

        A redacted dataset must not have the folders that hold the text of its predecessor either.

        Raises:
            StorageError: The store failed in every attempt.
            ValueError: documents.ids is damaged.
        """
        if is_redacted(self._dataset.manifest.settings):
            yield from self._text_folders()
        if not self._dataset.folder.exists(DOCUMENT_IDS):
            return
        listed = find_listed(self._dataset, self._documents)
        if len(listed):
            what = f"lists {len(listed):,} document(s) that must be absent, such as"
            where = self._dataset.locate(DOCUMENT_IDS)
            yield Finding(where, f"{what} {int(listed[0]):016x}; {_CURE}")

    def _text_folders(self) -> Iterator[Finding]:
        """Yields a finding for each folder with the text of documents."""
        names = self._dataset.folder.list()
        for folder in _TEXT_FOLDERS:
            if any(name.startswith(folder) for name in names):
                what = "may hold the text of documents that must be absent; delete this folder"
                yield Finding(self._dataset.locate(folder.rstrip("/")), what)
