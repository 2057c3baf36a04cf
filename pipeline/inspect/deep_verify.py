"""Checks every instance against the rules of docs/parity.md, for `verify --deep true`.

The dataset is read only once: `verify` passes each block to a `DeepCheck` while it checks hashes.
"""

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
from pipeline.shards.redactions import is_redacted
from pipeline.shards.verify import Finding
from pipeline.tokens.buckets import plan_buckets


class DeepCheck:
    """Checks the blocks of a dataset against BERT's rules, and counts what was drawn at random.

    Call the object with every block of the dataset, in any order and from any number of threads.
    After the last block, `findings` tests the counts, and `describe` shows them.

    Attributes:
        shares: For each split and sequence length, the counts of what was drawn at random, such as
            how many masked positions show [MASK]. Blocks that break a rule are not counted.
    """

    def __init__(self, dataset: Dataset) -> None:
        """Reads the settings and the vocabulary of a dataset, which decide the rules.

        Args:
            dataset: The dataset.

        Raises:
            ValueError: The vocabulary or the settings cannot be read, or do not fit each other.
        """
        manifest = dataset.manifest
        vocabulary = read_vocabulary(dataset)
        if len(vocabulary) != manifest.vocab_size:
            found = f"{len(vocabulary)} entries, the manifest says {manifest.vocab_size}"
            where = dataset.locate("vocab.txt")
            raise ValueError(f"{where}: {found}; restore or rebuild the dataset")

        lengths = {group.seq_len for group in manifest.groups}
        continues = vocabulary.continues
        self._rules = {seq_len: rules_of(manifest, seq_len, continues) for seq_len in lengths}
        self.shares: dict[tuple[str, int], Shares] = {}
        # By the name of a shard: the documents of A and of random B in each of its blocks so far.
        self._documents: dict[str, list[tuple[Array, Array]]] = {}
        # By the name of a shard: the number of instances in its blocks so far.
        self._instances: Counter[str] = Counter()
        self._sources = manifest.sources
        self._is_redacted = is_redacted(manifest.settings)
        # A source of a weight below 1 has documents that a pass does not use. In a redacted dataset
        # a document may have lost all its instances: those whose B was of a redacted document.
        is_each_used = all(source["weight"] >= 1 for source in manifest.sources)
        self._uses_all = is_each_used and not self._is_redacted
        # By the folder of a pass: its shards, of which each is one bucket.
        self._num_buckets = Counter(shard.folder for shard in dataset.all_shards)
        self._lock = threading.Lock()
        self._where = dataset.locate("manifest.json")

    def __call__(self, shard: Shard, block: Block) -> Iterator[str]:
        """Checks a block, and yields a message for each rule that it breaks.

        After the last block of a shard, the documents of the whole shard are checked too.

        Args:
            shard: The shard that holds the block.
            block: The block.
        """
        rules = self._rules[shard.seq_len]
        key = (shard.split, shard.seq_len)
        violations = list(find_violations(block, rules))
        if not violations:
            of_block = count_shares(block, rules)
            with self._lock:
                before = self.shares.get(key, Shares())
                self.shares[key] = Shares(*map(operator.add, before, of_block))
        yield from violations
        yield from self._check_documents(shard, block)

    def _check_documents(self, shard: Shard, block: Block) -> Iterator[str]:
        """Checks the documents of a shard when its last block has been given.

        An instance has the first 64 bits of the ids of the documents of its segments A and B. Every
        document that a pass uses gives segment A of at least one instance. So the ids of all
        segments A must agree with the seal of the shard, which has the number of its documents and
        the exclusive or of their ids. Segments B must be from the same documents. The ids of a
        train shard must be in the range of ids of its bucket.

        Args:
            shard: The shard that holds the block.
            block: The next block of the shard.

        Yields:
            A message for each of these rules that is broken; none before the last block.
        """
        random_b = block.document_b[block.is_random_next]
        self._documents.setdefault(shard.name, []).append((block.document_a, random_b))
        self._instances[shard.name] += block.num_instances
        if self._instances[shard.name] < shard.instances:
            return

        all_a, all_b = map(np.concatenate, zip(*self._documents.pop(shard.name), strict=True))
        ids = np.unique(all_a)
        ids_xor = f"{int(np.bitwise_xor.reduce(ids)):016x}"
        is_validation = shard.split == "validation"
        uses_all = self._uses_all or (is_validation and not self._is_redacted)
        is_as_sealed = len(ids) == shard.seal.documents and shard.seal.ids_xor.startswith(ids_xor)
        is_wrong = not is_as_sealed if uses_all else len(ids) > shard.seal.documents
        if is_wrong:
            begin = f"begin with {len(ids):,} documents (xor of ids {ids_xor}...)"
            most = "" if uses_all else "at most "
            yield f"the instances of its shard {begin}, the shard's seal is of {most}{shard.seal}"
        if uses_all and (foreign := np.count_nonzero(~np.isin(all_b, ids))):
            yield f"{foreign:,} segment(s) B are of documents that begin no instance of its shard"

        if shard.split == "train":
            yield from self._check_bucket(shard, np.concatenate([ids, all_b]))
        else:
            yield from self._check_last_ids(ids)

    def _check_bucket(self, shard: Shard, ids: Array) -> Iterator[str]:
        """Yields a message if a train shard has documents of another bucket.

        A bucket is the documents whose ids are in one range. The number in the name of a shard is
        the number of its bucket.

        Args:
            shard: The shard.
            ids: [n] uint64, the first 64 bits of the ids of the shard's documents.
        """
        number = int(Path(shard.name).stem.removeprefix("shard-"))
        num_buckets = self._num_buckets[shard.folder]
        if number >= num_buckets:
            yield f"the number of its shard is past the {num_buckets} of its pass"
            return
        bucket = plan_buckets(num_buckets, b"")[number]
        first = _first_64_bits(bucket.first_id.hex())
        last = _first_64_bits(bucket.last_id.hex())
        if foreign := np.count_nonzero((ids < first) | (ids > last)):
            bucket_ids = f"ids of it begin with {first:016x} to {last:016x}"
            found = f"are of another bucket than {number} of {num_buckets}"
            yield f"{foreign:,} segment(s) {found}: {bucket_ids}"

    def _check_last_ids(self, ids: Array) -> Iterator[str]:
        """Yields a message if the validation shard does not end with the documents that it should.

        Of each source, the documents with the lowest ids are held out for validation, except very
        long ones. The manifest has the highest id that was held out of each source. Every such id
        must be in the shard, and the highest of them must be the highest id in the shard. In a
        redacted dataset such a document may have no instance, so only higher ids are refused.

        Args:
            ids: [n] uint64, ascending: the first 64 bits of the ids of the shard's documents.
        """
        of_sources = (source.get("validation", {}).get("last_id") for source in self._sources)
        in_manifest = [last_id for last_id in of_sources if last_id]
        expected = np.array([_first_64_bits(last_id) for last_id in in_manifest], np.uint64)
        if self._is_redacted:
            is_right = ids[-1] <= expected.max(initial=0)
        else:
            is_right = np.isin(expected, ids).all() and ids[-1] == expected.max(initial=0)
        if len(expected) and not is_right:
            last_ids = f"the last ids of sources held out are {', '.join(in_manifest)}"
            yield f"the manifest says that {last_ids}; its shard ends with {ids[-1]:016x}..."

    def findings(self) -> Iterator[Finding]:
        """Yields a finding for each measured share that cannot have come about by chance.

        For example, [MASK] should be at 80 % of the masked positions. A measured share differs a
        little, and a finding says that it differs too much.
        """
        for (split, seq_len), shares in sorted(self.shares.items()):
            rules = self._rules[seq_len]
            size = rules.masking.vocab_size
            has_all_pairs = rules.has_pairs and not self._is_redacted
            for what in find_unlikely_shares(shares, size, has_all_pairs=has_all_pairs):
                yield Finding(f"{self._where}, {split} L{seq_len}", what)

    def describe(self) -> Iterator[str]:
        """Yields a line about the measured shares of each split and sequence length."""
        for (split, seq_len), shares in sorted(self.shares.items()):
            yield f"{split} L{seq_len}: {describe_shares(shares, self._rules[seq_len])}"


def _first_64_bits(document_id: str) -> np.uint64:
    """Returns the first 64 bits of a document's id, which is given in 32 hex digits."""
    return np.uint64(int(document_id[:16], 16))
