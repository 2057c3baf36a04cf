"""The oracle: google-research/bert ``create_pretraining_data.py`` with its draws in their order.

One function per numbered rule of docs/parity.md sections 1 and 2; readable, slow and never used in
production. Tokens may be strings or ids; `Vocabulary` says which of them are special and which
continue a word.
"""

from collections.abc import Sequence
from itertools import chain
from random import Random
from typing import NamedTuple

Document = list[list[int]]


class Vocabulary(NamedTuple):
    """What the reference looks up in vocab.txt, on ids."""

    size: int
    cls_id: int
    sep_id: int
    mask_id: int
    continuations: frozenset[int] = frozenset()  # ids of pieces that start with "##"


class Settings(NamedTuple):
    """The program's flags, with its defaults where it has any."""

    max_seq_length: int = 128
    max_predictions: int = 20
    short_seq_prob: float = 0.1
    masked_lm_prob: float = 0.15
    dupe_factor: int = 10
    whole_word_masking: bool = False
    glue_across_segments: bool = True  # a B cut to begin with "##" joins the last word of A


class Pair(NamedTuple):
    """Segments after truncation, before specials."""

    tokens_a: list[int]
    tokens_b: list[int]
    is_random_next: bool


class Instance(NamedTuple):
    """One output row, as golden/ stores it."""

    input_ids: list[int]
    segment_ids: list[int]
    positions: list[int]
    label_ids: list[int]
    is_random_next: bool


def create_instances(
    documents: list[Document], vocab: Vocabulary, settings: Settings, rng: Random
) -> list[Instance]:
    """The whole program (1.1, 1.10): one generator for all."""
    documents = [list(filter(None, document)) for document in documents if any(document)]
    rng.shuffle(documents)
    instances = [
        instance
        for _ in range(settings.dupe_factor)
        for index in range(len(documents))
        for instance in create_document_instances(documents, index, vocab, settings, rng)
    ]
    rng.shuffle(instances)
    return instances


def create_document_instances(
    documents: list[Document], index: int, vocab: Vocabulary, settings: Settings, rng: Random
) -> list[Instance]:
    """Pairs of one document, each masked before the next is drawn (1.9)."""
    rule = settings.max_seq_length, settings.short_seq_prob, rng
    pairs = create_document_pairs(documents, index, *rule)
    return [mask_pair(pair, vocab, settings, rng) for pair in pairs]


def create_document_pairs(
    documents: list[Document],
    index: int,
    max_seq_length: int,
    short_seq_prob: float,
    rng: Random,
    labels: list[tuple[bool, bool]] | None = None,
):
    """Yields the pairs of one document (1.2-1.8); masking draws from `rng` between two of them.

    `labels` (is_random_next, is one sentence) of all pairs before balances the labels (5,
    nsp_balance exact) and is added to.
    """
    document, max_tokens = documents[index], max_seq_length - 3
    target = rng.randint(2, max_tokens) if rng.random() < short_seq_prob else max_tokens
    chunk: list[list[int]] = []
    i = 0
    while i < len(document):
        chunk.append(document[i])
        i += 1
        if i < len(document) and sum(map(len, chunk)) < target:
            continue
        a_end = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
        tokens_a, tokens_b = list(chain(*chunk[:a_end])), list(chain(*chunk[a_end:]))
        chance = 0.5
        if labels:
            rest = [*document[i - len(chunk) :], *chain(*documents[index + 1 :])]
            chance = balanced_chance(labels, sum(map(len, rest)), max_tokens)
        is_random_next = len(chunk) == 1 or rng.random() < chance
        if labels is not None:
            labels.append((is_random_next, len(chunk) == 1))
        if is_random_next:
            tokens_b = draw_random_b(documents, index, target - len(tokens_a), rng)
            i -= len(chunk) - a_end
        truncate(tokens_a, tokens_b, max_tokens, rng)
        yield Pair(tokens_a, tokens_b, is_random_next)
        chunk = []


def balanced_chance(labels: list[tuple[bool, bool]], tokens_left: int, max_tokens: int) -> float:
    """5: the chance that levels both labels over the pairs that are left."""
    excess = sum(1 if is_random else -1 for is_random, _ in labels)
    forced = sum(is_single for _, is_single in labels) / (len(labels) + 64)
    return (0.5 - excess / (2 * max(1, tokens_left // max_tokens)) - forced) / (1 - forced)


def draw_random_b(documents: list[Document], index: int, target: int, rng: Random) -> list[int]:
    """1.6; where ten draws hit the document itself, the next one, as in 5."""
    for _ in range(10):
        other = rng.randint(0, len(documents) - 1)
        if other != index:
            break
    else:
        other = (index + 1) % len(documents)
    tokens: list[int] = []
    for sentence in documents[other][rng.randint(0, len(documents[other]) - 1) :]:
        tokens += sentence
        if len(tokens) >= target:
            break
    return tokens


def truncate(tokens_a: list[int], tokens_b: list[int], max_tokens: int, rng: Random) -> None:
    """1.8, in place."""
    while len(tokens_a) + len(tokens_b) > max_tokens:
        victim = tokens_a if len(tokens_a) > len(tokens_b) else tokens_b
        victim.pop(0 if rng.random() < 0.5 else -1)


def assemble(pair: Pair, vocab: Vocabulary) -> tuple[list[int], list[int]]:
    """Input ids and segment ids (1.9)."""
    first, second = [vocab.cls_id, *pair.tokens_a, vocab.sep_id], [*pair.tokens_b, vocab.sep_id]
    return first + second, [0] * len(first) + [1] * len(second)


def mask_pair(pair: Pair, vocab: Vocabulary, settings: Settings, rng: Random) -> Instance:
    """Section 2."""
    original, segment_ids = assemble(pair, vocab)
    words = list_words(original, segment_ids, vocab, settings)
    rng.shuffle(words)
    positions: list[int] = []
    input_ids = list(original)
    limit = count_predictions(len(original), settings.masked_lm_prob, settings.max_predictions)
    for word in words:
        if len(positions) >= limit:
            break
        if len(positions) + len(word) > limit:
            continue
        for position in word:
            positions.append(position)
            input_ids[position] = replace(original[position], vocab, rng)
    positions.sort()
    labels = [original[position] for position in positions]
    return Instance(input_ids, segment_ids, positions, labels, pair.is_random_next)


def list_words(
    tokens: Sequence[int], segment_ids: Sequence[int], vocab: Vocabulary, settings: Settings
) -> list[list[int]]:
    """2.1: single positions, or whole words."""
    words: list[list[int]] = []
    for position, token in enumerate(tokens):
        if token in {vocab.cls_id, vocab.sep_id}:
            continue
        joins = settings.whole_word_masking and bool(words) and token in vocab.continuations
        if joins and not settings.glue_across_segments:
            joins = segment_ids[words[-1][-1]] == segment_ids[position]
        if not joins:
            words.append([])
        words[-1].append(position)
    return words


def count_predictions(num_tokens: int, masked_lm_prob: float, max_predictions: int) -> int:
    """2.3: `num_tokens` includes the special ones; half rounds to even."""
    return min(max_predictions, max(1, round(num_tokens * masked_lm_prob)))


def replace(token: int, vocab: Vocabulary, rng: Random) -> int:
    """2.5."""
    if rng.random() < 0.8:
        return vocab.mask_id
    if rng.random() < 0.5:
        return token
    return rng.randint(0, vocab.size - 1)
