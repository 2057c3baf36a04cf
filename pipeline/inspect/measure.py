"""Measures a bounded sample of a dataset for report.json: lengths, and some instances.

At most SAMPLE_BLOCKS blocks of each split and sequence length are read, spread evenly over passes
and shards.

The lengths of documents are read from the encoded documents, which are files called token parts.
Each has an index with one row per document. The first rows of at most SAMPLE_PARTS indexes are
read. An index is sorted by a hash of the text, so its first rows are a random sample.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.inspect.show import describe_instance, read_vocabulary
from pipeline.shards.block import Block, block_instances
from pipeline.shards.dataset import Dataset, read_block
from pipeline.shards.instance_kind import has_pairs
from pipeline.shards.records import Group, Shard
from pipeline.tokens.grouped_rows import read_bounds, read_rows
from pipeline.tokens.provenance import EncodedDocuments
from pipeline.tokens.token_parts import INDEX_DTYPE
from tokenizer.vocab import Vocabulary

SAMPLE_BLOCKS = 32
SAMPLE_PARTS = 16
_ROWS_OF_A_PART = 4096
_NUM_BINS = 16
_NUM_INSTANCES = 4
"""How many instances of a split and sequence length are shown."""
_DOCUMENT_EDGES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, None)
"""Upper limits of the bins of documents' lengths in tokens; None means no limit."""


def measure_group(dataset: Dataset, group: Group) -> dict[str, Any]:
    """Measures a sample of the instances of one split and sequence length, for report.json.

    Args:
        dataset: The dataset.
        group: The split and the sequence length.

    Returns:
        A mapping of `sample` to the number of blocks and instances in the sample, `lengths` to the
        result of `count_lengths` for its instances, and `sample_instances` to at most four
        instances: two with the next segment B and two with a random one, or four of one segment.
    """
    key = (group.split, group.seq_len)
    shards = [shard for shard in dataset.all_shards if (shard.split, shard.seq_len) == key]
    chosen = choose_blocks(shards, SAMPLE_BLOCKS)
    blocks = [read_block(dataset, shard, number) for shard, number in chosen]

    lengths = np.concatenate([np.diff(block.offsets) for block in blocks])
    edges = [group.seq_len * (edge + 1) // _NUM_BINS for edge in range(_NUM_BINS)]
    sample = {"blocks": len(blocks), "of_blocks": sum(map(_num_blocks, shards))}

    vocabulary = read_vocabulary(dataset)
    instances: list[dict[str, Any]] = []
    labels = (False, True) if has_pairs(dataset.manifest.settings) else (False,)
    for label in labels:
        of_label = _instances(chosen, blocks, label, vocabulary)
        instances += islice(of_label, _NUM_INSTANCES // len(labels))
    return {
        "sample": {**sample, "instances": len(lengths)},
        "lengths": count_lengths(lengths, edges),
        "sample_instances": instances,
    }


def choose_blocks(shards: Sequence[Shard], most: int) -> list[tuple[Shard, int]]:
    """Chooses blocks that are spread evenly over all blocks of some shards.

    Args:
        shards: The shards.
        most: The most blocks to choose.

    Returns:
        The shard of each chosen block, and the block's number in the shard, from 0.
    """
    bounds = np.cumsum([0, *map(_num_blocks, shards)]).tolist()
    count = min(most, bounds[-1])
    chosen = []
    for block in (bounds[-1] * index // count for index in range(count)):
        owner = bisect_right(bounds, block) - 1
        chosen.append((shards[owner], block - bounds[owner]))
    return chosen


def count_lengths(lengths: npt.NDArray[Any], edges: Sequence[int | None]) -> dict[str, Any]:
    """Returns a histogram of lengths, with quantiles and the mean.

    Args:
        lengths: [n] integers.
        edges: The upper limits of the bins, ascending. The last may be None, for no limit.

    Returns:
        A mapping of `up_to` to the edges, `counts` to the number of lengths in each bin, `mean` to
        the mean, and `quantiles` to a mapping with the keys "5%", "50%" and "95%", which is empty
        if there are no lengths. A bin has the lengths that are at most its edge, and more than the
        edge before.
    """
    closed = [edge for edge in edges if edge is not None]
    counts = np.bincount(np.searchsorted(closed, lengths, side="left"), minlength=len(edges))
    histogram = {"up_to": list(edges), "counts": counts.tolist()}
    if not len(lengths):
        return {**histogram, "quantiles": {}, "mean": 0.0}
    quantiles = np.quantile(lengths, [0.05, 0.5, 0.95], method="nearest").astype(int).tolist()
    named = dict(zip(("5%", "50%", "95%"), quantiles, strict=True))
    return {**histogram, "quantiles": named, "mean": round(float(np.mean(lengths)), 2)}


def measure_documents(tokens: EncodedDocuments | None) -> dict[str, Any] | None:
    """Measures the lengths of a sample of documents, from the index of their token parts.

    Args:
        tokens: The encoded documents of the dataset, or None if they are gone.

    Returns:
        For report.json, a mapping of `sample` to the number of documents in the sample and in all,
        `dropped_examples` to examples of dropped documents, and `document_tokens` to the result of
        `count_lengths` for the sample. None if `tokens` is None.
    """
    if tokens is None:
        return None
    names = tokens.store["part_names"]
    chosen = {names[len(names) * index // SAMPLE_PARTS] for index in range(SAMPLE_PARTS)}
    lengths = np.concatenate([_measure_part(tokens, name) for name in sorted(chosen)])
    of_documents = tokens.store["totals"]["documents"]
    return {
        "sample": {"documents": len(lengths), "of_documents": of_documents},
        "dropped_examples": tokens.store.get("dropped_examples", []),
        "document_tokens": count_lengths(lengths, _DOCUMENT_EDGES),
    }


def _measure_part(tokens: EncodedDocuments, name: str) -> npt.NDArray[np.uint32]:
    """Returns an [n] array of the lengths in tokens of a token part's first 4,096 documents."""
    index = f"{name}.index"
    num_rows = min(int(read_bounds(tokens.folder, index)[-1]), _ROWS_OF_A_PART)
    return read_rows(tokens.folder, index, INDEX_DTYPE, 0, num_rows)["tokens"]


def _instances(
    chosen: Sequence[tuple[Shard, int]],
    blocks: Sequence[Block],
    label: bool,
    vocabulary: Vocabulary,
) -> Iterator[dict[str, Any]]:
    """Yields the instances of some blocks whose segment B is random, or is not, lazily.

    Args:
        chosen: For each block, its shard and its number in the shard.
        blocks: The blocks.
        label: True for instances with a random segment B, False for the others.
        vocabulary: The dataset's vocabulary.

    Yields:
        The result of `describe_instance`, with two more keys: the name of the `shard`, and the
        number of the `instance` in the shard.
    """
    for (shard, number), block in zip(chosen, blocks, strict=True):
        for row in np.flatnonzero(block.is_random_next == label).tolist():
            place = number * block_instances(shard.seq_len) + row
            described = describe_instance(block.slice(row, row + 1), vocabulary)
            yield {"shard": shard.name, "instance": place} | described


def _num_blocks(shard: Shard) -> int:
    """Returns the number of blocks of a shard, of which only the last may be partly filled."""
    return -(-shard.instances // block_instances(shard.seq_len))
