"""What a bounded sample of a dataset shows: lengths, masks by kind and by position, frequent pieces, some instances.

At most SAMPLE_BLOCKS blocks of a split and length are read, spread evenly over its passes and
shards, and of at most SAMPLE_PARTS token parts the first documents (parts are sorted by a hash of
the text, so those are a random sample). Every result is plain data for report.json. N instances, T
tokens, M masked positions.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.inspect.show import describe_instance, read_vocabulary
from pipeline.shards.block import Block, block_instances, concatenate_blocks
from pipeline.shards.dataset import Dataset, read_block
from pipeline.shards.records import Group, Shard
from pipeline.tokens.dropped_ids import read_dropped_ids
from pipeline.tokens.grouped_rows import read_bounds, read_rows
from pipeline.tokens.provenance import EncodedDocuments
from pipeline.tokens.token_parts import INDEX_DTYPE, unpack_documents

SAMPLE_BLOCKS = 32
SAMPLE_PARTS = 16
MASK_KINDS = ("mask", "kept", "random")
_ROWS_OF_A_PART = 4096
_BYTES_OF_A_PART = 1 << 20
_NUM_BINS = 16
_NUM_PIECES = 30
_INSTANCES_PER_LABEL = 2
_DOCUMENT_EDGES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, None)
_SENTENCE_EDGES = (*range(5, 76, 5), None)


def measure_group(dataset: Dataset, group: Group) -> dict[str, Any]:
    """Lengths, masks, pieces and instances of a sample of one split and length."""
    own = (group.split, group.seq_len)
    shards = [shard for shard in dataset.all_shards if (shard.split, shard.seq_len) == own]
    blocks = choose_blocks(shards, SAMPLE_BLOCKS)
    read = [read_block(dataset, shard, number) for shard, number in blocks]
    joined = concatenate_blocks(read)
    total = sum(map(_num_blocks, shards))
    edges = [group.seq_len * (edge + 1) // _NUM_BINS for edge in range(_NUM_BINS)]
    return {
        "sample": {"blocks": len(blocks), "of_blocks": total, "instances": joined.num_instances},
        "lengths": count_lengths(np.diff(joined.offsets), edges),
        "masks": measure_mask_kinds(joined, dataset.manifest.special_ids["mask"]),
        "masked_by_position": measure_mask_positions(joined, edges),
        "pieces": _measure_pieces(dataset, joined),
        "sample_instances": _choose_instances(dataset, read, blocks),
    }


def choose_blocks(shards: Sequence[Shard], most: int) -> list[tuple[Shard, int]]:
    """At most `most` blocks as (shard, number in the shard), evenly spread over all blocks of the shards."""
    bounds = np.cumsum([0, *(_num_blocks(shard) for shard in shards)])
    total = int(bounds[-1])
    chosen = [total * index // min(most, total) for index in range(min(most, total))]
    owners = [int(np.searchsorted(bounds, block, side="right")) - 1 for block in chosen]
    return [
        (shards[owner], block - int(bounds[owner]))
        for owner, block in zip(owners, chosen, strict=True)
    ]


def count_lengths(lengths: npt.NDArray[Any], edges: Sequence[int | None]) -> dict[str, Any]:
    """A histogram, counts[i] being the lengths in (up_to[i - 1], up_to[i]] (null: no limit), quantiles, mean."""
    closed = [edge for edge in edges if edge is not None]
    counts = np.bincount(np.searchsorted(closed, lengths, side="left"), minlength=len(edges))
    if not len(lengths):
        return {"up_to": list(edges), "counts": counts.tolist(), "quantiles": {}, "mean": 0.0}
    quantiles = np.quantile(lengths, [0.05, 0.5, 0.95], method="nearest").astype(int).tolist()
    return {
        "up_to": list(edges),
        "counts": counts.tolist(),
        "quantiles": dict(zip(("5%", "50%", "95%"), quantiles, strict=True)),
        "mean": round(float(np.mean(lengths)), 2),
    }


def measure_mask_kinds(block: Block, mask_id: int) -> dict[str, Any]:
    """How often masked positions show [MASK], the word itself and a random piece (docs/parity.md, 2.5)."""
    shown = block.input_ids[block.masked_indices]
    is_mask, is_kept = shown == mask_id, shown == block.masked_lm_ids
    num_mask, num_kept = int(np.count_nonzero(is_mask)), int(np.count_nonzero(is_kept & ~is_mask))
    counts = (num_mask, num_kept, len(shown) - num_mask - num_kept)
    return {
        "counts": dict(zip(MASK_KINDS, counts, strict=True)),
        "shares": {
            kind: round(count / max(1, len(shown)), 6)
            for kind, count in zip(MASK_KINDS, counts, strict=True)
        },
    }


def measure_mask_positions(block: Block, edges: Sequence[int]) -> list[float | None]:
    """Share of the maskable positions up to each edge that are masked; None where there are none."""
    lengths, starts = np.diff(block.offsets), block.offsets[:-1]
    positions = np.arange(block.num_tokens, dtype=np.int64) - np.repeat(starts, lengths)
    bins = np.searchsorted(edges, positions + 1)
    is_maskable = np.ones(block.num_tokens, bool)
    for special in (starts, starts + block.segment_a_length - 1, block.offsets[1:] - 1):
        is_maskable[special] = False
    masked, maskable = (
        np.bincount(each, minlength=len(edges)).tolist()
        for each in (bins[block.masked_indices], bins[is_maskable])
    )
    return [
        round(part / whole, 6) if whole else None
        for part, whole in zip(masked, maskable, strict=True)
    ]


def measure_documents(tokens: EncodedDocuments | None, vocab_size: int) -> dict[str, Any] | None:
    """Lengths of documents and sentences in tokens, from the token parts; None where those of this dataset are gone."""
    if tokens is None:
        return None
    store, names = tokens.store, tokens.store["part_names"]
    chosen = [names[len(names) * index // SAMPLE_PARTS] for index in range(SAMPLE_PARTS)]
    dtype = np.uint16 if vocab_size <= 1 << 16 else np.uint32
    measured = [_measure_part(tokens, name, dtype) for name in sorted(set(chosen))]
    documents, sentences = (np.concatenate(arrays) for arrays in zip(*measured, strict=True))
    return {
        "sample": {"documents": len(documents), "of_documents": store["totals"]["documents"]},
        "sampled_sentences": len(sentences),
        "dropped_examples": store.get("dropped_examples", []),
        "document_tokens": count_lengths(documents, _DOCUMENT_EDGES),
        "sentence_tokens": count_lengths(sentences, _SENTENCE_EDGES),
    }


def _measure_part(
    tokens: EncodedDocuments, name: str, dtype: Any
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Tokens of the first documents of a part that are kept, as many as one read holds, and of their sentences."""
    num_rows = min(int(read_bounds(tokens.folder, f"{name}.index")[-1]), _ROWS_OF_A_PART)
    if num_rows == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    rows = read_rows(tokens.folder, f"{name}.index", INDEX_DTYPE, 0, num_rows)
    ends = (rows["offset"] + rows["size"]).astype(np.int64)
    end = int(ends[max(0, int(np.searchsorted(ends, _BYTES_OF_A_PART, side="right")) - 1)])
    data = tokens.folder.read_range(f"{name}.tokens", 0, end)
    documents = list(unpack_documents(data, dtype, tokens.folder.locate(f"{name}.tokens")))
    ids = [document.id for document in documents]
    is_dropped = tokens.store["totals"]["dropped"]
    dropped = read_dropped_ids(tokens.folder, min(ids), max(ids)) if is_dropped else frozenset()
    kept = [each.sentence_lengths.astype(np.int64) for each in documents if each.id not in dropped]
    return np.array([sum(each) for each in kept], np.int64), np.concatenate(
        [np.zeros(0, np.int64), *kept]
    )


def _measure_pieces(dataset: Dataset, joined: Block) -> dict[str, Any]:
    """The most frequent pieces before masking."""
    vocabulary = read_vocabulary(dataset)
    originals = joined.input_ids.copy()
    originals[joined.masked_indices] = joined.masked_lm_ids
    counts = np.bincount(originals, minlength=len(vocabulary))
    special = dataset.manifest.special_ids
    counts[[special[name] for name in ("pad", "cls", "sep", "mask")]] = 0
    top = np.argsort(-counts, kind="stable")[:_NUM_PIECES].tolist()
    shares = [
        [vocabulary.tokens[index], round(int(counts[index]) / int(counts.sum()), 6)]
        for index in top
        if counts[index]
    ]
    return {"seen": int(np.count_nonzero(counts)), "most_frequent": shares}


def _choose_instances(
    dataset: Dataset, read: Sequence[Block], blocks: Sequence[tuple[Shard, int]]
) -> list[dict[str, Any]]:
    """Some instances of either label, from the first block that has such."""
    vocabulary = read_vocabulary(dataset)
    chosen = []
    for label in (False, True):
        rows = (
            (shard, number, block, int(row))
            for (shard, number), block in zip(blocks, read, strict=True)
            for row in np.flatnonzero(block.is_random_next == label)
        )
        for shard, number, block, row in itertools.islice(rows, _INSTANCES_PER_LABEL):
            place = number * block_instances(shard.seq_len) + row
            described = describe_instance(block.slice(row, row + 1), vocabulary)
            chosen.append({"shard": shard.name, "instance": place} | described)
    return chosen


def _num_blocks(shard: Shard) -> int:
    return -(-shard.instances // block_instances(shard.seq_len))
