"""Draws masks anew as instances are read, instead of the masks that the build drew.

How many tokens are masked, which may be masked, and what they show then, are decided by the rules
of pipeline/instances/masking.py, as in a build. The random draws differ. Every instance has a
number in its stream: g0 + s, if it is in slot s of the global batch at position g0. This number and
the run's seed give the instance a seed of its own, from which all its draws are made
(docs/order.md, "Masks drawn anew"). So masks do not depend on the number of ranks or workers, on
micro_tokens or on a resume.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pipeline.instances.masking import InstanceDraws, mask_instances
from pipeline.instances.rules import rules_of
from pipeline.seeds import seed_of, words_at
from pipeline.shards.block import Block, concatenate_blocks
from pipeline.shards.dataset import Dataset
from tokenizer.vocab import parse_vocab

ShareAt = Callable[[int], float]
"""Takes the number of a step and returns the share of an instance's tokens that is masked."""

_ROWS = 1024
"""Instances masked together: some MB at length 128."""


class StepInstances(NamedTuple):
    """The numbers of some instances of one step, which are consecutive in the stream.

    Attributes:
        step: Number of the step, which decides the share of tokens to mask.
        first_number: The number that the first of these instances has in the stream: g0 + s in
            docs/order.md.
        num_instances: Number of instances.
    """

    step: int
    first_number: int
    num_instances: int


class MaskRedraw:
    """Draws new masks for the instances of a stream, all of one length."""

    def __init__(
        self, datasets: Sequence[Dataset], seq_len: int, seed: int, share_at: ShareAt
    ) -> None:
        """Reads the vocabulary and the rules of masking that the datasets were built with.

        Args:
            datasets: The datasets of the stream; they have the same vocabulary.
            seq_len: The length of the instances.
            seed: Seed of the run.
            share_at: Takes the number of a step, and returns the share of tokens to mask.

        Raises:
            ValueError: Some datasets mask whole words and others mask single pieces.
        """
        continues = parse_vocab(datasets[0].read_file("vocab.txt"), datasets[0].url).continues
        rules = [rules_of(dataset.manifest, seq_len, continues).masking for dataset in datasets]
        if len({rule.is_continuation is None for rule in rules}) > 1:
            raise ValueError(
                "masks cannot be drawn anew in a mixture of which only some datasets were built"
                " with whole_word_masking; build them alike, or leave masking static"
            )
        # The build's max_predictions may be below the share asked for here: only the length of an
        # instance bounds the number of its masks.
        self._rule = replace(rules[0], max_predictions=seq_len)
        self._share_at = share_at
        self._position_bits = (seq_len - 1).bit_length()
        self._seed = np.array([seed_of(f"{seed}/masks-L{seq_len}", 8)], np.uint64)

    def __call__(self, block: Block, steps: Sequence[StepInstances]) -> Block:
        """Returns a block with other masks on the same text.

        Args:
            block: N instances.
            steps: The steps whose instances the block holds, one step after another.
        """
        shares = [self._share_at(step.step) for step in steps]
        shares_N = np.repeat(shares, [step.num_instances for step in steps])
        numbers_N = np.concatenate(
            [np.arange(step.first_number, step.first_number + step.num_instances) for step in steps]
        )
        seeds_N = words_at(self._seed, numbers_N.astype(np.uint64))
        parts = []
        for start in range(0, block.num_instances, _ROWS):
            rows = slice(start, min(start + _ROWS, block.num_instances))
            part = restore_text(block.slice(rows.start, rows.stop))
            rule = replace(self._rule, masked_lm_prob=shares_N[rows])
            draws = InstanceDraws(seeds_N[rows], self._position_bits)
            masked = mask_instances(
                part.input_ids, part.offsets, part.segment_a_length, rule, draws
            )
            parts.append(replace(part, **vars(masked)))
        return concatenate_blocks(parts)


def restore_text(block: Block) -> Block:
    """Returns a block whose input_ids have the original tokens at the masked positions.

    The columns that list the masks still list them.
    """
    input_ids = block.input_ids.copy()
    input_ids[block.masked_indices] = block.masked_lm_ids
    return replace(block, input_ids=input_ids)
