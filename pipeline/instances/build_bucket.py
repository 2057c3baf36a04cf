"""Turns the documents of a bucket into blocks of masked instances.

A bucket is a share of the documents of a dataset. Its documents are sorted by their ids, and copies
are dropped. Then sentence pairs are made and shuffled. At this point a pair is only two spans, the
first and the last token of each segment in the bucket's tokens. An instance of one segment is a
pair with an empty B. Last, the tokens of the pairs are copied into instances and masked, for 16
blocks at a time, which are called a mask group. So memory holds the tokens of the bucket and one
mask group, but never all instances.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

from pipeline.documents.source import MAX_SOURCES
from pipeline.documents.sources import choose_uses
from pipeline.instances.masking import GroupDraws, MaskingRule, mask_instances
from pipeline.instances.pairs import NspBalance, Pairs, gather_pairs, make_pairs
from pipeline.instances.single_segments import cut_segments
from pipeline.seeds import permutation, seed_for
from pipeline.shards.block import Block, block_instances
from pipeline.shards.instance_kind import SEGMENT_PAIRS, InstanceKind
from pipeline.tokens.token_parts import TokenizedDocument

BLOCKS_PER_MASK_GROUP = 16
"""Blocks of instances that one generator masks. With another number a seed gives other masks."""


@dataclass(frozen=True)
class InstanceRule:
    """The rule by which the instances of one length are made.

    Attributes:
        seq_len: The most tokens an instance may have, the special ones included.
        seed: The seed of the whole dataset.
        short_seq_prob: The share of documents whose instances have a shorter target length, drawn
            at random.
        cls_id: The id of [CLS].
        sep_id: The id of [SEP].
        masking: The rule by which instances are masked.
        kind: What an instance holds: a pair of segments, or one segment.
        nsp_balance: How often a pair has a random B: "reference" as google-research/bert,
            "exact" half of the pairs.
        weights: For each source, how often a pass uses one of its documents, in millionths: with
            500,000 half of the documents are used, with 2,000,000 each is used twice. Empty if each
            document is used once.
    """

    seq_len: int
    seed: int
    short_seq_prob: float
    cls_id: int
    sep_id: int
    masking: MaskingRule
    kind: InstanceKind = SEGMENT_PAIRS
    nsp_balance: NspBalance = "reference"
    weights: tuple[int, ...] = ()


@dataclass(frozen=True)
class BucketDocuments:
    """The distinct documents of a bucket, in the order of their ids and laid end to end.

    There are D documents of S sentences and T tokens in all.

    Attributes:
        ids: [D] ids of 16 bytes each.
        sentence_offsets: [D + 1] the index of the first sentence of each document, and S at the
            end.
        sentence_lengths: [S] the number of tokens of each sentence.
        tokens: [T] uint16 or uint32, the tokens of all sentences.
        sources: [D] the number of each document's source.
        rows: The number of documents that arrived, copies included.
        checksum: The sum of the crc32 of all documents that arrived, copies included.
    """

    ids: list[bytes]
    sentence_offsets: npt.NDArray[np.int64]
    sentence_lengths: npt.NDArray[np.unsignedinteger]
    tokens: npt.NDArray[np.unsignedinteger]
    sources: npt.NDArray[np.uint8]
    rows: int
    checksum: int


def gather_documents(documents: Iterable[TokenizedDocument]) -> BucketDocuments:
    """Returns a bucket's documents without copies, sorted by id and laid end to end.

    Copies have the same id. The copy from the source with the lowest number is kept. While this
    function runs, memory holds the tokens twice.

    Args:
        documents: The documents of the bucket in any order, with copies.
    """
    by_id: dict[bytes, tuple[npt.NDArray[np.unsignedinteger], npt.NDArray[np.unsignedinteger]]] = {}
    source_of: dict[bytes, int] = {}
    rows = 0
    checksum = 0
    for document in documents:
        rows += 1
        checksum += document.crc32
        known = source_of.get(document.id, MAX_SOURCES)
        if document.source < known or (
            document.source == known and _is_before(document, by_id[document.id][0])
        ):
            by_id[document.id] = document.sentence_lengths, document.tokens
            source_of[document.id] = document.source

    ids = sorted(by_id)
    num_sentences = [len(by_id[document_id][0]) for document_id in ids]
    sentence_offsets = np.cumsum([0, *num_sentences], dtype=np.int64)
    lengths = np.zeros(0, np.uint16)
    dtype = np.dtype(np.uint16)
    if ids:
        lengths = np.concatenate([by_id[document_id][0] for document_id in ids])
        dtype = by_id[ids[0]][1].dtype

    tokens = np.empty(sum(len(document_tokens) for _, document_tokens in by_id.values()), dtype)
    start = 0
    for document_id in ids:
        _, document_tokens = by_id.pop(document_id)  # freed as soon as it is copied
        tokens[start : start + len(document_tokens)] = document_tokens
        start += len(document_tokens)
    sources = np.array([source_of[document_id] for document_id in ids], np.uint8)
    return BucketDocuments(ids, sentence_offsets, lengths, tokens, sources, rows, checksum)


def _is_before(document: TokenizedDocument, lengths: npt.NDArray[np.unsignedinteger]) -> bool:
    """Returns whether a document replaces a copy of it, from the same source, that arrived before.

    Copies may be split into different sentences. The copy whose list of sentence lengths is the
    smaller one, compared number by number, is kept. So the choice does not depend on the order in
    which copies arrive.

    Args:
        document: The document that has arrived now.
        lengths: The numbers of tokens of the sentences of the copy that arrived before.
    """
    return bool(document.sentence_lengths.tolist() < lengths.tolist())


def build_bucket(
    documents: BucketDocuments, rule: InstanceRule, pass_index: int, bucket_name: str
) -> Iterator[Block]:
    """Yields the blocks of a bucket for one pass, lazily. All blocks but the last are full.

    The blocks depend on nothing but the arguments.

    Args:
        documents: The documents of the bucket.
        rule: The rule by which instances are made.
        pass_index: The number of the pass, from 0.
        bucket_name: The name of the bucket, from which its random seeds are derived.

    Raises:
        ValueError: There are fewer than two distinct documents, or the pass uses none of them.
    """
    pairs = _shuffled_pairs(documents, rule, pass_index, bucket_name)
    id_prefixes = _id_prefixes(documents)
    block_size = block_instances(rule.seq_len)
    group_size = block_size * BLOCKS_PER_MASK_GROUP
    purpose = f"masks-L{rule.seq_len}"
    for group, start in enumerate(range(0, len(pairs), group_size)):
        group_pairs = pairs.take(slice(start, start + group_size))
        rng = Random(seed_for(rule.seed, purpose, pass_index, f"{bucket_name}/{group}"))
        instances = _build_group(documents.tokens, group_pairs, id_prefixes, rule, rng)
        for first in range(0, instances.num_instances, block_size):
            yield instances.slice(first, min(first + block_size, instances.num_instances))


def count_source_tokens(
    blocks: Iterable[Block], documents: BucketDocuments, counts: npt.NDArray[np.int64]
) -> Iterator[Block]:
    """Yields blocks unchanged, and adds their tokens to the counts of their sources.

    [CLS] A [SEP] counts for the source of A, and B [SEP] for the source of B.

    Args:
        blocks: The blocks of a bucket.
        documents: The documents of the bucket.
        counts: [sources] the number of tokens of each source; changed in place.
    """
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
    """Returns the pairs of a bucket for one pass, in random order (docs/format.md, section 5).

    The arguments are those of `build_bucket`.

    Raises:
        ValueError: There are fewer than two distinct documents, or the pass uses none of them.
    """
    names = [document_id.hex() for document_id in documents.ids]
    rows: list[int] | None = None
    if rule.weights:
        rows, uses_before = choose_uses(
            documents.ids, documents.sources, rule.weights, rule.seed, pass_index
        )
        if not rows:
            raise ValueError(
                f"pass {pass_index} uses none of the {len(documents.ids)} documents of"
                f" {bucket_name}: the weights of their sources are too small; multiply all weights"
                " by the same number, or take fewer num_buckets"
            )
        # The first use of a document has the same seed as without weights.
        names = [
            f"{names[row]}/{number}" if number else names[row]
            for row, number in zip(rows, uses_before, strict=True)
        ]

    purpose = f"pairs-L{rule.seq_len}"
    seeds = [seed_for(rule.seed, purpose, pass_index, name) for name in names]
    sentences = documents.sentence_lengths, documents.sentence_offsets
    short = rule.short_seq_prob
    if rule.kind == SEGMENT_PAIRS:
        pairs = make_pairs(*sentences, seeds, rule.seq_len, short, rule.nsp_balance, rows)
    else:
        pairs = cut_segments(*sentences, seeds, rule.seq_len, rule.kind, short, rows)
    shuffle_seed = seed_for(rule.seed, f"shuffle-L{rule.seq_len}", pass_index, bucket_name)
    return pairs.take(permutation(len(pairs), Random(shuffle_seed)))


def _id_prefixes(documents: BucketDocuments) -> npt.NDArray[np.uint64]:
    """Returns the first 64 bits of each document's id: [D] uint64."""
    prefixes = [int.from_bytes(document_id[:8], "big") for document_id in documents.ids]
    return np.array(prefixes, np.uint64)


def _build_group(
    tokens: npt.NDArray[np.unsignedinteger],
    pairs: Pairs,
    id_prefixes: npt.NDArray[np.uint64],
    rule: InstanceRule,
    rng: Random,
) -> Block:
    """Returns the masked instances of a mask group in one block, which `build_bucket` then cuts.

    Args:
        tokens: [T] the tokens of the bucket.
        pairs: The pairs of the group.
        id_prefixes: [D] the first 64 bits of each document's id.
        rule: The rule by which instances are made.
        rng: The generator that draws the masks.
    """
    packed = gather_pairs(tokens, pairs, rule.cls_id, rule.sep_id)
    masked = mask_instances(
        packed.input_ids, packed.offsets, packed.segment_a_length, rule.masking, GroupDraws(rng)
    )
    return Block(
        **vars(masked),
        offsets=packed.offsets.astype(np.int32),
        segment_a_length=packed.segment_a_length,
        is_random_next=pairs.is_random_next,
        document_a=id_prefixes[pairs.document_a],
        document_b=id_prefixes[pairs.document_b],
    )
