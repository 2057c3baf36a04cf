"""`verify --deep true`: every instance is held to the rules of docs/parity.md, in the one read."""

import operator
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pipeline.inspect.show import read_vocabulary
from pipeline.instances.rules import (
    Shares,
    count_shares,
    describe_shares,
    find_unlikely_shares,
    find_violations,
    rules_of,
)
from pipeline.shards.block import Array, Block
from pipeline.shards.dataset import Dataset
from pipeline.shards.records import Shard
from pipeline.shards.verify import Finding
from pipeline.tokens.buckets import plan_buckets


class DeepCheck:
    """Looks at blocks in any order and from several threads, and adds up what chance decides."""

    def __init__(self, dataset: Dataset) -> None:
        """Learns the rules; a ValueError where vocabulary or settings cannot be read."""
        manifest = dataset.manifest
        vocabulary = read_vocabulary(dataset)
        if len(vocabulary) != manifest.vocab_size:
            said = f"{len(vocabulary)} entries, the manifest says {manifest.vocab_size}"
            where = dataset.locate("vocab.txt")
            raise ValueError(f"{where}: {said}; restore or rebuild the dataset")
        lengths = {group.seq_len for group in manifest.groups}
        continues = vocabulary.continues
        self._rules = {seq_len: rules_of(manifest, seq_len, continues) for seq_len in lengths}
        self.shares: dict[tuple[str, int], Shares] = {}  # of blocks without violations
        self._documents: dict[str, list[tuple[Array, Array]]] = {}  # of A and B, by shard
        self._instances: Counter[str] = Counter()
        self._sources = manifest.sources
        self._uses_all = all(source["weight"] >= 1 for source in manifest.sources)
        self._num_buckets = Counter(shard.folder for shard in dataset.all_shards)
        self._lock = threading.Lock()
        self._where = dataset.locate("manifest.json")

    def __call__(self, shard: Shard, block: Block) -> Iterator[str]:
        """What is wrong with a block of a shard."""
        rules, key = self._rules[shard.seq_len], (shard.split, shard.seq_len)
        found = list(find_violations(block, rules))
        if not found:
            own = count_shares(block, rules)
            with self._lock:
                before = self.shares.get(key, Shares())
                self.shares[key] = Shares(*map(operator.add, before, own))
        yield from found
        yield from self._check_documents(shard, block)

    def _check_documents(self, shard: Shard, block: Block) -> Iterator[str]:
        """After the last block of a shard: its documents are those of its seal, and of its bucket.

        Every document that a pass uses begins an instance of it, which has the first 64 bits of the
        document's id; segments B are of the same documents.
        """
        others = block.document_b[block.is_random_next]
        self._documents.setdefault(shard.name, []).append((block.document_a, others))
        self._instances[shard.name] += block.num_instances
        if self._instances[shard.name] < shard.instances:
            return
        ids, others = map(np.concatenate, zip(*self._documents.pop(shard.name), strict=True))
        ids = np.unique(ids)
        ids_xor = f"{int(np.bitwise_xor.reduce(ids)):016x}"
        uses_all = self._uses_all or shard.split == "validation"
        is_own = len(ids) == shard.seal.documents and shard.seal.ids_xor.startswith(ids_xor)
        if not is_own if uses_all else len(ids) > shard.seal.documents:
            begin = f"begin with {len(ids):,} documents (xor of ids {ids_xor}...)"
            most = "" if uses_all else "at most "
            yield f"the instances of its shard {begin}, the shard's seal is of {most}{shard.seal}"
        if uses_all and (foreign := np.count_nonzero(~np.isin(others, ids))):
            yield f"{foreign:,} segment(s) B are of documents that begin no instance of its shard"
        if shard.split == "train":
            yield from self._check_bucket(shard, np.concatenate([ids, others]))
        else:
            yield from self._check_last_ids(ids)

    def _check_bucket(self, shard: Shard, ids: Array) -> Iterator[str]:
        """Ids of a train shard lie in the range of its bucket, which has the shard's number."""
        number = int(Path(shard.name).stem.removeprefix("shard-"))
        num_buckets = self._num_buckets[shard.folder]
        if number >= num_buckets:
            yield f"the number of its shard is past the {num_buckets} of its pass"
            return
        bucket = plan_buckets(num_buckets, b"")[number]
        first, last = _first_64_bits(bucket.first_id.hex()), _first_64_bits(bucket.last_id.hex())
        if foreign := np.count_nonzero((ids < first) | (ids > last)):
            bucket_ids = f"ids of it begin with {first:016x} to {last:016x}"
            other = f"are of another bucket than {number} of {num_buckets}"
            yield f"{foreign:,} segment(s) {other}: {bucket_ids}"

    def _check_last_ids(self, ids: Array) -> Iterator[str]:
        """Of the ids held out, ascending, the last of each source is there, and none past them."""
        of_sources = (each.get("validation", {}).get("last_id") for each in self._sources)
        found = [last_id for last_id in of_sources if last_id]
        expected = np.array([_first_64_bits(last_id) for last_id in found], np.uint64)
        if len(expected) and not (np.isin(expected, ids).all() and ids[-1] == expected.max()):
            last_ids = f"the last ids of sources held out are {', '.join(found)}"
            yield f"the manifest says that {last_ids}; its shard ends with {ids[-1]:016x}..."

    def findings(self) -> Iterator[Finding]:
        """Shares that no chance explains, after all blocks."""
        for (split, seq_len), shares in sorted(self.shares.items()):
            rule = self._rules[seq_len].masking
            for what in find_unlikely_shares(shares, rule.vocab_size):
                yield Finding(f"{self._where}, {split} L{seq_len}", what)

    def describe(self) -> Iterator[str]:
        """A line for each split and length."""
        for (split, seq_len), shares in sorted(self.shares.items()):
            rule = self._rules[seq_len].masking
            yield f"{split} L{seq_len}: {describe_shares(shares, rule.vocab_size)}"


def _first_64_bits(document_id: str) -> np.uint64:
    return np.uint64(int(document_id[:16], 16))
