"""How well the stream mixes, beside full random permutations of the same instances: one JSON line.

    python -m scripts.bench.shuffle_quality DATASET --seq_len 128 --global_batch 256

Of one epoch of the first pass: the share of pairs in a batch that are of one document (segment
A's); how far apart the instances of a document come, in shares of the epoch; how often instances
stored side by side share a batch. Of two epochs over the same pass: how many of a batch's pairs
meet in a batch again. Same documents, same batch size, and a permutation drawn anew for every
repetition; nothing is asserted.
"""

import argparse
import json
import platform
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.shards.block import block_instances, decode_block
from pipeline.shards.dataset import Dataset, open_dataset
from scripts.checkout import commit
from trainer.order.order import ShardSize, StreamOrder
from trainer.order.share import default_num_lanes, rank_runs

Array = npt.NDArray[np.int64]


def read_documents(dataset: Dataset, seq_len: int) -> Array:
    """The document of segment A of every instance of the first pass [N], shard after shard, numbered from 0."""
    found = []
    for shard in dataset.shards("train", seq_len, 0):
        data, table = dataset.read_file(shard.name), dataset.blocks(shard)
        for offset, size in zip(table.offset.tolist(), table.size.tolist(), strict=True):
            found.append(decode_block(data[offset : offset + size], shard.name).document_a)
    return np.unique(np.concatenate(found), return_inverse=True)[1].astype(np.int64)


def stream_order(
    dataset: Dataset, seq_len: int, seed: int, global_batch: int, epoch: int, num_lanes: int | None
) -> Array:
    """Instances [N] of the first pass in the order that one epoch of the stream takes them, by place in the pass."""
    shards = tuple(
        ShardSize(each.name, each.instances) for each in dataset.shards("train", seq_len, 0)
    )
    size = sum(each.instances for each in shards)
    lanes = num_lanes or default_num_lanes(global_batch, [size], block_instances(seq_len))
    order = StreamOrder(((shards,),), (1,), seed, lanes)
    first = np.cumsum([0, *(each.instances for each in shards)])
    taken = []
    for position in range(epoch * size, (epoch + 1) * size, global_batch):
        count = min(global_batch, (epoch + 1) * size - position)
        runs = rank_runs(order, position, count, 0, 1)
        taken += [
            np.arange(a, b)
            for a, b in zip(
                first[runs.shard] + runs.start, first[runs.shard] + runs.stop, strict=True
            )
        ]
    return np.concatenate(taken)


def same_document_share(documents: Array, order: Array, global_batch: int) -> float:
    """Pairs of one document among all pairs of a batch, over all full batches."""
    pairs = possible = 0
    for begin in range(0, len(order) - global_batch + 1, global_batch):
        counts = np.bincount(documents[order[begin : begin + global_batch]])
        pairs += int((counts * (counts - 1)).sum())
        possible += global_batch * (global_batch - 1)
    return pairs / possible


def document_gaps(documents: Array, order: Array) -> dict[str, float]:
    """How far apart the instances of a document come in the epoch, as shares of it: mean and quantiles."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    by_document = np.lexsort((place, documents))
    inside = np.diff(documents[by_document]) == 0
    gaps = np.diff(place[by_document])[inside] / len(order)
    return {"mean": float(gaps.mean())} | {
        f"p{q}": float(np.percentile(gaps, q)) for q in (1, 10, 50)
    }


def stored_neighbours_share(order: Array, global_batch: int) -> float:
    """Instances stored one after another that share a batch."""
    batch = np.empty(len(order), np.int64)
    batch[order] = np.arange(len(order)) // global_batch
    return float(np.mean(np.diff(batch) == 0))


def companions_share(first: Array, second: Array, global_batch: int) -> float:
    """Pairs of a batch of one epoch that share a batch of another one too."""
    batch = np.empty(len(second), np.int64)
    batch[second] = np.arange(len(second)) // global_batch
    return same_document_share(batch, first, global_batch)  # what they share is a batch instead


def measure(documents: Array, epoch: Callable[[int], Array], global_batch: int) -> dict[str, Any]:
    """All measures of two epochs of an order."""
    first, second = epoch(0), epoch(1)
    assert np.array_equal(np.sort(first), np.arange(len(documents))), "an epoch must be complete"
    return {
        "same_document_pairs": same_document_share(documents, first, global_batch),
        "document_gaps": document_gaps(documents, first),
        "stored_neighbours_in_batch": stored_neighbours_share(first, global_batch),
        "companions_again": companions_share(first, second, global_batch),
    }


def permutation(size: int, seed: int, epoch: int) -> Array:
    """A full shuffle, a new one for every epoch."""
    return np.random.default_rng([seed, epoch]).permutation(size)


def main() -> int:
    """Measures the stream for some seeds and as many permutations."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("dataset")
    parser.add_argument("--seq_len", type=int, default=128)
    parser.add_argument("--global_batch", type=int, default=256)
    parser.add_argument("--num_lanes", type=int)
    parser.add_argument("--repeat", type=int, default=5)
    own = parser.parse_args()
    dataset = open_dataset(own.dataset)
    documents = read_documents(dataset, own.seq_len)
    orders = [
        partial(stream_order, dataset, own.seq_len, seed, own.global_batch, num_lanes=own.num_lanes)
        for seed in range(own.repeat)
    ]
    shuffles = [partial(permutation, len(documents), seed) for seed in range(own.repeat)]
    streams, full = (
        [measure(documents, epoch, own.global_batch) for epoch in each]
        for each in (orders, shuffles)
    )
    shares = [
        [float(np.median([run[key] for run in runs])) for runs in (streams, full)]
        for key in ("same_document_pairs", "companions_again")
    ]
    result = {
        "benchmark": "shuffle_quality",
        "commit": commit(),
        "versions": {name: version(name) for name in ("numpy",)},
        "python": platform.python_version(),
        "config": {**vars(own), "instances": len(documents), "documents": int(documents.max()) + 1},
        "num_lanes": own.num_lanes
        or default_num_lanes(own.global_batch, [len(documents)], block_instances(own.seq_len)),
        "n": own.repeat,
        "same_document_pairs": {"stream": shares[0][0], "permutation": shares[0][1]},
        "companions_again": {"stream": shares[1][0], "permutation": shares[1][1]},
        "stream": streams,
        "permutation": full,
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
