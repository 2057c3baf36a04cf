"""Reads the instances of a finished dataset into a PCollection."""

import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import apache_beam as beam

from pipeline.jobs import metrics
from pipeline.jobs.broadcast import RefuseOtherCode
from pipeline.shards.block import to_record_batch
from pipeline.shards.dataset import Dataset, open_dataset, read_blocks
from pipeline.shards.manifest import SHARDS_TABLE
from pipeline.storage.folder import Folder
from pipeline.storage.secret_values import hide


class ReadInstances(
    beam.PTransform[beam.pvalue.PBegin, beam.PCollection[dict[str, Any]]]  # type: ignore[misc]
):
    """Reads the instances of a dataset, as a PCollection of dicts.

    It is applied to the pipeline itself. Each instance is one dict. Token ids are integers, and no
    instance is padded:

    - `split`: "train" or "validation".
    - `seq_len`: the length that the instance was made for.
    - `pass_index`: the number of its pass, from 0.
    - `input_ids`: list of the token ids, [CLS] A [SEP] B [SEP], or [CLS] A [SEP] in a dataset of
      one segment. Masks are already applied.
    - `segment_a_length`: number of tokens in [CLS] A [SEP], which have type 0.
    - `masked_lm_positions`: list of the positions to predict, ascending.
    - `masked_lm_ids`: list of the ids to predict at these positions.
    - `is_random_next`: `True` if B is from another document than A.
    - `document_a`, `document_b`: the first 8 bytes of the documents' ids, as integers.

    Raises:
        FileNotFoundError: When the transform is applied, there is no finished dataset.
        ValueError: When the transform is applied, the dataset has no instances of this split and
            length. While the pipeline runs, another dataset is in the folder by now, or a block is
            damaged.

    Examples:
        ```python
        import apache_beam as beam

        from pipeline import ReadInstances

        with beam.Pipeline() as pipeline:
            instances = pipeline | ReadInstances("my-data", split="train", seq_len=128)
            instances | beam.combiners.Count.Globally() | beam.Map(print)
        ```
    """

    def __init__(
        self,
        dataset: str | os.PathLike[str],
        split: str | None = None,
        seq_len: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Takes the dataset, and which of its instances to read.

        Args:
            dataset: Folder or URL of a finished dataset.
            split: "train" or "validation"; None reads both.
            seq_len: The length of the instances; None reads all lengths.
            storage_options: Options of the fsspec filesystem, such as keys of an object store. They
                are sent to the workers; of a text `${NAME}` only the name is sent, and it stands
                for that environment variable.
        """
        super().__init__()
        self._dataset = os.fspath(dataset)
        self._split = split
        self._seq_len = seq_len
        self._options = storage_options

    def display_data(self) -> dict[str, Any]:
        """Returns the dataset, which a runner shows for this transform."""
        return {"dataset": hide(self._dataset)}

    def expand(self, pipeline: beam.pvalue.PBegin) -> beam.PCollection[dict[str, Any]]:
        """Opens the dataset and adds the steps that read its shards.

        Raises:
            FileNotFoundError: There is no finished dataset.
            ValueError: The dataset has no instances of this split and length.
        """
        dataset = open_dataset(self._dataset, self._options)
        chosen = [
            shard.name
            for shard in dataset.all_shards
            if self._split in (None, shard.split) and self._seq_len in (None, shard.seq_len)
        ]
        if not chosen:
            raise ValueError(f"{dataset.url}: {self._describe_absence(dataset)}")
        read = beam.FlatMap(read_instances, dataset.folder, _identity(dataset))
        shards = pipeline | "Shards" >> beam.Create(chosen, reshuffle=True) | RefuseOtherCode()
        return shards | "ReadShards" >> read

    def _describe_absence(self, dataset: Dataset) -> str:
        """Returns which instances are missing in a dataset, and which it has."""
        missing = f"{self._split} instances" if self._split else "instances"
        if self._seq_len is not None:
            missing += f" of seq_len {self._seq_len!r}"
        groups = dataset.manifest.groups
        choices = ", ".join(f"{group.split} L{group.seq_len}" for group in groups)
        return f"no {missing}; the dataset has {choices}"


def read_instances(name: str, folder: Folder, identity: str) -> Iterator[dict[str, Any]]:
    """Yields the instances of a shard, in order.

    Args:
        name: The shard's name in its dataset.
        folder: The folder of the dataset.
        identity: The dataset's `_identity` when the pipeline was made.

    Raises:
        ValueError: Another dataset is in the folder by now, or a block is damaged.
    """
    dataset = _open(folder, identity)
    [shard] = [shard for shard in dataset.all_shards if shard.name == name]
    place = {"split": shard.split, "seq_len": shard.seq_len, "pass_index": shard.pass_index}
    for block in read_blocks(dataset, shard):
        metrics.count({"instances_read": block.num_instances, "tokens_read": len(block.input_ids)})
        yield from (place | row for row in to_record_batch(block).to_pylist())


def _identity(dataset: Dataset) -> str:
    """Returns the hash of a dataset's table of shards. It differs if any shard differs."""
    return str(dataset.manifest.sha256_of(SHARDS_TABLE))


@lru_cache(maxsize=4)
def _open(folder: Folder, identity: str) -> Dataset:
    """Opens a dataset, once per worker, and checks its identity.

    Raises:
        ValueError: The dataset was built anew since the pipeline was made.
    """
    dataset = open_dataset(folder.url, folder.options)
    if _identity(dataset) != identity:
        raise ValueError(
            f"{folder.url}: another dataset is there than when the pipeline was made; make the"
            " pipeline again"
        )
    return dataset
