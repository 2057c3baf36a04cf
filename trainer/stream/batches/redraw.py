"""Masks drawn anew as instances are read, in the place of those that the build drew.

Counts, candidates and the 80/10/10 rule stay those of pipeline/instances/masking.py. The instance
in slot s of the global batch at position g0 is number g0 + s of its stream. That number and the
run's seed give the instance its own, which gives every draw. So no number of ranks, processes or
tokens of a micro-batch changes a mask, nor does a resume.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from pipeline.instances.masking import InstanceDraws, mask_run
from pipeline.instances.rules import rules_of
from pipeline.seeds import seed_of, words_at
from pipeline.shards.block import Block, concatenate_blocks
from pipeline.shards.dataset import Dataset
from tokenizer.vocab import parse_vocab

ShareAt = Callable[[int], float]
"""The share of an instance's tokens that is masked, by the number of the step."""

_ROWS = 1024
"""Instances masked together: some MB at length 128."""


class MaskRedraw:
    """Masks the instances of a stream of one length anew."""

    def __init__(
        self, datasets: Sequence[Dataset], seq_len: int, seed: int, share_at: ShareAt
    ) -> None:
        """Reads the vocabulary; a ValueError where datasets are not masked by the same units."""
        continues = parse_vocab(datasets[0].read_file("vocab.txt"), datasets[0].url).continues
        rules = [rules_of(each.manifest, seq_len, continues).masking for each in datasets]
        if len({rule.is_continuation is None for rule in rules}) > 1:
            raise ValueError(
                "masks cannot be drawn anew in a mixture of which only some datasets were built"
                " with whole_word_masking; build them alike, or leave masking static"
            )
        # An instance's own length bounds its masks, as a build's bound may be below the share.
        self._rule = replace(rules[0], max_predictions=seq_len)
        self._share_at, self._position_bits = share_at, (seq_len - 1).bit_length()
        self._seed = np.array([seed_of(f"{seed}/masks-L{seq_len}", 8)], np.uint64)

    def __call__(self, block: Block, runs: Sequence[tuple[int, int, int]]) -> Block:
        """The block with the text of its instances masked anew.

        They are runs: a step, the number of its first instance in the stream, and how many.
        """
        counts = [count for _, _, count in runs]
        shares_N = np.repeat([self._share_at(step) for step, _, _ in runs], counts)
        numbers_N = np.concatenate([np.arange(first, first + count) for _, first, count in runs])
        seeds_N = words_at(self._seed, numbers_N.astype(np.uint64))
        parts = []
        for start in range(0, block.num_instances, _ROWS):
            rows = slice(start, min(start + _ROWS, block.num_instances))
            part = restore_text(block.slice(rows.start, rows.stop))
            rule = replace(self._rule, masked_lm_prob=shares_N[rows])
            draws = InstanceDraws(seeds_N[rows], self._position_bits)
            masked = mask_run(part.input_ids, part.offsets, part.segment_a_length, rule, draws)
            parts.append(replace(part, **vars(masked)))
        return concatenate_blocks(parts)


def restore_text(block: Block) -> Block:
    """The block with every masked token's original in its place; its masks stay listed."""
    input_ids = block.input_ids.copy()
    input_ids[block.masked_indices] = block.masked_lm_ids
    return replace(block, input_ids=input_ids)
