"""One bucket's documents to blocks of instances: sort, drop copies, pair, shuffle, gather, mask.

Spans are shuffled first, then gathered and masked in runs, so memory is the bucket's tokens once
and a run, not its instances.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

from pipeline.documents.source import MAX_SOURCES
from pipeline.documents.sources import choose_uses
from pipeline.instances.masking import MaskingRule, RunDraws, mask_run
from pipeline.instances.pairs import NspBalance, Pairs, gather_pairs, make_pairs
from pipeline.seeds import permutation, seed_for
from pipeline.shards.block import Block, block_instances
from pipeline.tokens.token_parts import TokenizedDocument

BLOCKS_PER_RUN = 16  # instances masked by one generator; part of what a seed means


@dataclass(frozen=True)
class InstanceRule:
    """How instances of one length are made.

    Attributes:
        seq_len: The most tokens an instance may have, the three special ones included.
        seed: The seed of the whole dataset.
        short_seq_prob: Share of documents cut to a random shorter target.
        weights: How often a pass uses a document, in millionths by its source's number; none where
            each is used once.
    """

    seq_len: int
    seed: int
    short_seq_prob: float
    cls_id: int
    sep_id: int
    masking: MaskingRule
    nsp_balance: NspBalance = "reference"
    weights: tuple[int, ...] = ()


@dataclass(frozen=True)
class BucketDocuments:
    """The distinct documents of a bucket, in the order of their ids, end to end.

    Attributes:
        ids: [D], 16 bytes each.
        sentence_offsets: [D + 1], first sentence of each document.
        sentence_lengths: [S] tokens of each sentence.
        tokens: [T] uint16 or uint32.
        sources: [D], number of each one's source.
        rows: How many came, copies included.
        checksum: Sum of the crc32 of all that came.
    """

    ids: list[bytes]
    sentence_offsets: npt.NDArray[np.int64]
    sentence_lengths: npt.NDArray[np.unsignedinteger]
    tokens: npt.NDArray[np.unsignedinteger]
    sources: npt.NDArray[np.uint8]
    rows: int
    checksum: int


def gather_documents(documents: Iterable[TokenizedDocument]) -> BucketDocuments:
    """Sorts a bucket's documents and lays them end to end; of copies the first source's stays.

    Memory is the tokens twice.
    """
    by_id: dict[bytes, tuple[npt.NDArray[np.unsignedinteger], npt.NDArray[np.unsignedinteger]]] = {}
    source_of: dict[bytes, int] = {}
    rows = checksum = 0
    for document in documents:
        rows, checksum = rows + 1, checksum + document.crc32
        known = source_of.get(document.id, MAX_SOURCES)
        if document.source < known or (
            document.source == known and _is_before(document, by_id[document.id][0])
        ):
            by_id[document.id] = document.sentence_lengths, document.tokens
            source_of[document.id] = document.source
    ids = sorted(by_id)
    sentence_offsets = np.cumsum([0, *(len(by_id[each][0]) for each in ids)], dtype=np.int64)
    lengths = np.concatenate([by_id[each][0] for each in ids]) if ids else np.zeros(0, np.uint16)
    dtype = by_id[ids[0]][1].dtype if ids else np.dtype(np.uint16)
    tokens = np.empty(sum(len(each) for _, each in by_id.values()), dtype)
    start = 0
    for each in ids:
        _, own = by_id.pop(each)
        tokens[start : start + len(own)] = own
        start += len(own)
    sources = np.array([source_of[each] for each in ids], np.uint8)
    return BucketDocuments(ids, sentence_offsets, lengths, tokens, sources, rows, checksum)


def _is_before(document: TokenizedDocument, other: npt.NDArray[np.unsignedinteger]) -> bool:
    """Whether a copy cut into other sentences is taken instead: their order must not decide."""
    return bool(document.sentence_lengths.tolist() < other.tolist())


def build_bucket(
    documents: BucketDocuments, rule: InstanceRule, pass_index: int, bucket_name: str
) -> Iterator[Block]:
    """The bucket's blocks for one pass, decided by the arguments alone; all full but the last.

    Raises:
        ValueError: Fewer than two distinct documents, or none that the pass uses.
    """
    pairs = _shuffled_pairs(documents, rule, pass_index, bucket_name)
    id_prefixes = _id_prefixes(documents)
    size = block_instances(rule.seq_len)
    run_size = size * BLOCKS_PER_RUN
    for run, start in enumerate(range(0, len(pairs), run_size)):
        own, purpose = pairs.take(slice(start, start + run_size)), f"masks-L{rule.seq_len}"
        rng = Random(seed_for(rule.seed, purpose, pass_index, f"{bucket_name}/{run}"))
        block = _build_run(documents.tokens, own, id_prefixes, rule, rng)
        for first in range(0, block.num_instances, size):
            yield block.slice(first, min(first + size, block.num_instances))


def count_source_tokens(
    blocks: Iterable[Block], documents: BucketDocuments, counts: npt.NDArray[np.int64]
) -> Iterator[Block]:
    """Passes on blocks; counts [CLS] A [SEP] as tokens of A's source, B [SEP] as B's."""
    id_prefixes = _id_prefixes(documents)
    for block in blocks:
        a_length = block.segment_a_length.astype(np.int64)
        b_length = np.diff(block.offsets) - a_length
        for keys, lengths in ((block.document_a, a_length), (block.document_b, b_length)):
            sources = documents.sources[np.searchsorted(id_prefixes, keys)]
            counts += np.bincount(sources, lengths, len(counts)).astype(np.int64)
        yield block


def _shuffled_pairs(
    documents: BucketDocuments, rule: InstanceRule, pass_index: int, bucket_name: str
) -> Pairs:
    purpose = f"pairs-L{rule.seq_len}"
    names, rows = [each.hex() for each in documents.ids], None
    if rule.weights:
        ids, sources = documents.ids, documents.sources
        rows, before = choose_uses(ids, sources, rule.weights, rule.seed, pass_index)
        uses = zip(rows, before, strict=True)
        names = [f"{names[row]}/{number}" if number else names[row] for row, number in uses]
        if not rows:
            raise ValueError(
                f"pass {pass_index} uses none of the {len(ids)} documents of {bucket_name}: the"
                " weights of their sources are too small; multiply all weights by the same number,"
                " or take fewer num_buckets"
            )
    seeds = [seed_for(rule.seed, purpose, pass_index, name) for name in names]
    lengths, offsets = documents.sentence_lengths, documents.sentence_offsets
    pairs = make_pairs(
        lengths, offsets, seeds, rule.seq_len, rule.short_seq_prob, rule.nsp_balance, rows
    )
    shuffle_seed = seed_for(rule.seed, f"shuffle-L{rule.seq_len}", pass_index, bucket_name)
    return pairs.take(permutation(len(pairs), Random(shuffle_seed)))


def _id_prefixes(documents: BucketDocuments) -> npt.NDArray[np.uint64]:
    return np.array([int.from_bytes(each[:8], "big") for each in documents.ids], np.uint64)


def _build_run(
    tokens: npt.NDArray[np.unsignedinteger],
    pairs: Pairs,
    id_prefixes: npt.NDArray[np.uint64],
    rule: InstanceRule,
    rng: Random,
) -> Block:
    packed = gather_pairs(tokens, pairs, rule.cls_id, rule.sep_id)
    columns = packed.input_ids, packed.offsets, packed.segment_a_length
    masked = mask_run(*columns, rule.masking, RunDraws(rng))
    return Block(
        **vars(masked),
        offsets=packed.offsets.astype(np.int32),
        segment_a_length=packed.segment_a_length,
        is_random_next=pairs.is_random_next,
        document_a=id_prefixes[pairs.document_a],
        document_b=id_prefixes[pairs.document_b],
    )
