"""A dataset of random tokens in a folder, small enough to train on in a test."""

from pathlib import Path

import numpy as np

from pipeline.shards.block import Block, block_instances
from tests.datasets import CLS, MASK, SEP, write_dataset


def write_tiny_dataset(
    folder: Path,
    seq_lens: tuple[int, ...] = (16,),
    instances: int = 300,
    vocab_size: int = 60,
    seed: int = 0,
    *,
    has_validation: bool = True,
) -> Path:
    """Two train passes of two shards and a validation shard a length; tokens follow Zipf's law."""
    rng = np.random.default_rng(seed)
    shards = {}
    for seq_len in seq_lens:
        for split, pass_index, bucket, count in [
            ("train", 0, 0, instances),
            ("train", 0, 1, instances // 2),
            ("train", 1, 0, instances),
            ("train", 1, 1, instances // 2),
            *([("validation", 0, 0, instances // 5)] if has_validation else []),
        ]:
            size = block_instances(seq_len)
            shards[split, seq_len, pass_index, bucket] = [
                random_block(rng, min(size, count - first), seq_len, vocab_size)
                for first in range(0, count, size)
            ]
    settings = {"lower_case": True, "seed": seed, "whole_word_masking": False}
    settings |= {"masked_lm_prob": 0.15, "max_predictions": 2}
    return write_dataset(folder, shards, vocab_size, settings)


def random_block(
    rng: np.random.Generator, num_instances: int, seq_len: int, vocab_size: int
) -> Block:
    """Instances of 8 to seq_len tokens, two masked; B is random where A's first token is odd."""
    lengths = rng.integers(8, seq_len + 1, num_instances)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    input_ids = np.minimum(4 + rng.zipf(1.5, offsets[-1]), vocab_size - 1).astype(np.uint16)
    segment_a = rng.integers(4, lengths - 3).astype(np.uint16)
    starts = offsets[:-1]
    input_ids[starts] = CLS
    input_ids[starts + segment_a - 1] = SEP
    input_ids[offsets[1:] - 1] = SEP
    positions = np.stack([np.ones(num_instances), lengths - 2], axis=1).astype(np.uint16)
    flat = (starts[:, None] + positions).ravel()
    labels = input_ids[flat]
    is_random_next = input_ids[starts + 1] % 2 == 1
    input_ids[flat] = MASK
    return Block(
        input_ids=input_ids,
        offsets=offsets,
        segment_a_length=segment_a,
        masked_lm_positions=positions.ravel(),
        masked_lm_ids=labels,
        masked_offsets=np.arange(0, 2 * num_instances + 1, 2, dtype=np.int32),
        is_random_next=is_random_next,
        document_a=np.arange(num_instances, dtype=np.uint64),
        document_b=np.arange(num_instances, dtype=np.uint64),
    )
