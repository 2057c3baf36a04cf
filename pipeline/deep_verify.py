"""`verify --deep true`: every instance is held to the rules of docs/parity.md, in the one read of the shards.

May import: stdlib, numpy, pipeline.instance_rules, pipeline.inspect, pipeline.shards.
"""

import threading
from collections.abc import Iterator

import numpy as np

from pipeline.inspect import read_vocabulary
from pipeline.instance_rules import (
    InstanceRules,
    Shares,
    count_shares,
    describe_shares,
    find_unlikely_shares,
    find_violations,
    rules_of,
)
from pipeline.shards.block import Block
from pipeline.shards.dataset import Dataset
from pipeline.shards.records import Shard
from pipeline.shards.verify import Finding
from tokenizer.vocab import CONTINUATION


class DeepCheck:
    """Looks at blocks in any order and from several threads, and adds up what chance decides.

    Attributes:
        shares: Of each split and length, of the blocks without violations.
    """

    def __init__(self, dataset: Dataset) -> None:
        """Learns the rules.

        Raises:
            ValueError: The vocabulary or the manifest's settings cannot be read.
        """
        manifest = dataset.manifest
        tokens = read_vocabulary(dataset).tokens
        if len(tokens) != manifest.vocab_size:
            found = f"{len(tokens)} entries, the manifest says {manifest.vocab_size}"
            raise ValueError(f"{dataset.locate('vocab.txt')}: {found}; restore or rebuild the dataset")
        is_continuation = np.array([token.startswith(CONTINUATION) for token in tokens])
        lengths = {group.seq_len for group in manifest.groups}
        self._rules = {seq_len: rules_of(manifest, seq_len, is_continuation) for seq_len in lengths}
        self.shares: dict[tuple[str, int], Shares] = {}
        self._lock = threading.Lock()
        self._where = dataset.locate("manifest.json")

    def __call__(self, shard: Shard, block: Block) -> Iterator[str]:
        """What is wrong with a block of a shard."""
        rules = self._rules[shard.seq_len]
        found = list(find_violations(block, rules))
        if not found:
            self._add(shard, count_shares(block, rules))
        yield from found

    def _add(self, shard: Shard, shares: Shares) -> None:
        key = (shard.split, shard.seq_len)
        with self._lock:
            self.shares[key] = self.shares.get(key, Shares()) + shares

    def findings(self) -> Iterator[Finding]:
        """Shares that no chance explains, after all blocks."""
        for (split, seq_len), shares in sorted(self.shares.items()):
            for what in find_unlikely_shares(shares, self._vocab_size(seq_len)):
                yield Finding(f"{self._where}, {split} L{seq_len}", what)

    def describe(self) -> Iterator[str]:
        """A line for each split and length."""
        for (split, seq_len), shares in sorted(self.shares.items()):
            yield f"{split} L{seq_len}: {describe_shares(shares, self._vocab_size(seq_len))}"

    def _vocab_size(self, seq_len: int) -> int:
        rules: InstanceRules = self._rules[seq_len]
        return rules.masking.vocab_size
