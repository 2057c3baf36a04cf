"""Finds the instances of documents that the stream leaves out (docs/order.md, rule 6)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from pipeline.shards.block import Array
from pipeline.shards.dataset import Dataset
from pipeline.shards.document_index import open_document_index
from pipeline.shards.document_list import hash_documents
from trainer.stream.order.order import PassInstances
from trainer.stream.order.source import Mixture
from trainer.stream.order.state import ListState

NO_INSTANCES = PassInstances(np.empty(0, np.int64), np.empty(0, np.int64))

_PassKey = tuple[str, int, int]
"""The URL of a dataset, the length and the number of a pass of its train split."""


@dataclass(frozen=True)
class LeftOutDocuments:
    """Documents whose instances a stream leaves out.

    Attributes:
        documents: The first 64 bits of each document's id, in the order of the list, without
            repetition.
        cache_dir: Folder for the index that finds the instances of documents; None takes the
            default of `open_document_index`.
        found: For each pass that was searched, the instances that hold at least one of the
            documents, and one number for each of these instances, int64 [I]. It is the index in
            `documents` of the document that the instance holds; if it holds several, of the one
            that comes first in the list.
    """

    documents: tuple[int, ...]
    cache_dir: str | None = None
    found: Mapping[_PassKey, tuple[PassInstances, Array]] = field(default_factory=dict)

    @property
    def state(self) -> ListState:
        """The number and the hash of these documents, as a stream's state keeps them."""
        return self.state_of_first(len(self.documents))

    def state_of_first(self, count: int) -> ListState:
        """Returns what `state` is for a list of only the first `count` documents."""
        return ListState(count, hash_documents(self.documents[:count]))

    def look_into(self, mixture: Mixture, seq_lens: Iterable[int]) -> "LeftOutDocuments":
        """Searches all known passes for instances of the documents.

        Returns a copy of this object that has the result in `found`, so that `instances` does not
        search these passes again.

        Args:
            mixture: The datasets, of which the train split is searched.
            seq_lens: The lengths of instances to search.

        Raises:
            FileNotFoundError: A file of a dataset is missing.
            ValueError: A dataset is damaged, or the cache folder cannot be used. Or all instances
                of a pass hold one of the documents.
        """
        found = dict(self.found)
        for source in mixture:
            for seq_len in sorted(set(seq_lens)):
                passes = {
                    shard.pass_index
                    for shard in source.dataset.all_shards
                    if (shard.split, shard.seq_len) == ("train", seq_len)
                }
                found |= self._find(source.dataset, seq_len, passes)
        return replace(self, found=found)

    def instances(
        self, dataset: Dataset, seq_len: int, pass_index: int, num_before: int = 0
    ) -> PassInstances:
        """Returns the instances of a pass of the train split that are left out.

        Args:
            dataset: The dataset.
            seq_len: The length of the instances.
            pass_index: The number of the pass, which must be known.
            num_before: Only instances that hold none of the first `num_before` documents of the
                list are returned.

        Raises:
            ValueError: All instances of the pass hold one of the documents.
        """
        key = dataset.url, seq_len, pass_index
        found = self.found.get(key) or self._find(dataset, seq_len, {pass_index})[key]
        instances, first_document = found
        is_new = first_document >= num_before
        return PassInstances(instances.shard[is_new], instances.row[is_new])

    def _find(
        self, dataset: Dataset, seq_len: int, passes: set[int]
    ) -> dict[_PassKey, tuple[PassInstances, Array]]:
        """Searches passes of a dataset for instances of the documents.

        Returns the entries of `found` for these passes.

        Args:
            dataset: The dataset, whose index of documents is opened.
            seq_len: The length of the instances.
            passes: Numbers of the passes to search.

        Raises:
            ValueError: All instances of a pass hold one of the documents. A stream that leaves them
                out would look for the next instance without end.
        """
        ids = np.array(self.documents, np.uint64)
        found = open_document_index(dataset, "train", self.cache_dir).find(ids, [seq_len])
        by_id = np.argsort(ids)
        place_in_list = by_id[np.searchsorted(ids[by_id], found.document)]
        instances: dict[_PassKey, tuple[PassInstances, Array]] = {}
        for pass_index in passes:
            shards = dataset.shards("train", seq_len, pass_index)
            index_of = {shard.name: index for index, shard in enumerate(shards)}
            index_in_pass = np.array(
                [index_of.get(shard.name, -1) for shard in dataset.all_shards], np.int64
            )
            shard = index_in_pass[found.shard]
            is_here = shard >= 0
            columns = np.stack([shard, found.row, place_in_list])[:, is_here]
            # An instance is found once for each listed document that it holds: only the first of
            # the list counts.
            columns = columns[:, np.lexsort(columns[::-1])]
            is_first = np.ones(columns.shape[1], np.bool_)
            is_first[1:] = (np.diff(columns[:2], axis=1) != 0).any(axis=0)
            shard, row, first_document = columns[:, is_first]
            num_instances = sum(shard.instances for shard in shards)
            if 0 < num_instances == len(row):
                raise ValueError(
                    f"{dataset.url}: leave_out leaves nothing of pass {pass_index} of train"
                    f" L{seq_len}, all {num_instances:,} instances hold a listed document; give a"
                    " shorter list, or train without this dataset"
                )
            key = dataset.url, seq_len, pass_index
            instances[key] = PassInstances(shard, row), first_document
        return instances
