"""Scores sentences with a model. A score is the sum of the log-probabilities of all tokens.

A masked model reads n copies of a sentence of n tokens. In each copy another token is masked, and
the model predicts it from all others (pseudo-log-likelihood, Salazar et al. 2020). With `word-l2r`
the later tokens of the same word are masked too (Kauf and Ivanova 2023). A model that was trained
left to right reads a sentence once and predicts each token from the tokens before it. [CLS] and
[SEP] are never predicted.

Shapes: S sentences of one length L with [CLS] and [SEP], R rows that a model reads, M positions
that it predicts, V vocabulary, P pairs.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from torch import Tensor
from torch.nn import functional as F

from tokenizer.vocab import CLS, MASK, SEP
from trainer.minimal_pairs.read import SENTENCES, Pair
from trainer.model.packed_inputs import PackedInputs, pack_sequences

Pll = Literal["original", "word-l2r"]
Ids = NDArray[np.int32]
Predict = Callable[[PackedInputs, Tensor], Tensor]
"""A model: it takes packed inputs and positions [M] in them, and returns logits [M, V] there."""

_Sentence = tuple[bytes, bytes]
"""The ids of a sentence's tokens, and the number of each token's word: bytes of int32 arrays."""

_NO_WORD = -1
"""The number that stands for the word of [CLS] and [SEP], which belong to no word."""


@dataclass(frozen=True)
class SentenceGroup:
    """Distinct sentences of one length, which are packed without padding.

    The scores of all tokens of all groups form one array, group after group and sentence after
    sentence (`token_scores`).

    Attributes:
        input_ids: [S, L], the ids of each sentence, with [CLS] and [SEP].
        words: [S, L], the number of the word that each token belongs to. When a token is masked,
            the later tokens of its word are masked as well. With the pll "original" every token is
            a word by itself.
        first_score: The index of this group's first score in the array of all scores.
    """

    input_ids: Ids
    words: Ids
    first_score: int

    @property
    def num_tokens(self) -> int:
        """Returns the number of tokens of one sentence, without [CLS] and [SEP]."""
        return int(self.input_ids.shape[1]) - 2

    @property
    def num_scores(self) -> int:
        """Returns the number of scored tokens of the group: all tokens but [CLS] and [SEP]."""
        return len(self.input_ids) * self.num_tokens


@dataclass(frozen=True)
class EncodedPairs:
    """Pairs as ids. Equal sentences are stored once, so that they get one score.

    Attributes:
        groups: The distinct sentences by length, the shortest first.
        good: [P], for each pair the index of its good sentence among the sentences of all groups.
        bad: [P], for each pair the index of its bad sentence.
        mask_id: The id of [MASK]; None for a model that reads left to right.
    """

    groups: list[SentenceGroup]
    good: NDArray[np.int64]
    bad: NDArray[np.int64]
    mask_id: int | None

    @property
    def num_scores(self) -> int:
        """Returns the number of tokens that are predicted: the length of the array of scores."""
        return sum(group.num_scores for group in self.groups)

    @property
    def num_read(self) -> int:
        """Returns the number of tokens that the model reads, in all copies of all sentences."""
        copies = [1 if self.mask_id is None else group.num_tokens for group in self.groups]
        return sum(
            count * group.input_ids.size for count, group in zip(copies, self.groups, strict=True)
        )


@dataclass(frozen=True)
class ScoreBatch:
    """Rows of one length that a model reads together.

    Attributes:
        input_ids: [R, L], the ids that the model reads, with [CLS] and [SEP].
        positions: [M], the positions among the R * L tokens at which the model makes a prediction.
            A masked model predicts the token at the position, a left-to-right model the next token.
        labels: [M], the ids of the tokens to be predicted.
        first_score: The index of the first label's score in the array of all scores. The scores of
            the other labels follow it.
    """

    input_ids: Ids
    positions: NDArray[np.int64]
    labels: NDArray[np.int64]
    first_score: int


def encode_pairs(
    pairs: Sequence[Pair], tokenizer: Tokenizer, limit: int, pll: Pll, *, is_causal: bool
) -> EncodedPairs:
    """Encodes both sentences of every pair.

    Args:
        pairs: The pairs, from `read_pairs`.
        tokenizer: The model's tokenizer. "[MASK]" in a sentence is encoded as text, not as the
            mask.
        limit: The most tokens that the model can read, with [CLS] and [SEP].
        pll: Which tokens are masked while a token is predicted: that token alone ("original"), or
            also the later tokens of its word ("word-l2r").
        is_causal: Whether the model reads left to right.

    Raises:
        ValueError: A sentence is longer than the limit or has no tokens, the tokenizer has no
            [MASK], or `word-l2r` is asked of a model that reads left to right.
    """
    if is_causal and pll != "original":
        raise ValueError(f"pll {pll} is about masks, and the model was trained left to right")
    ids = _special_ids(tokenizer, [CLS, SEP] if is_causal else [CLS, SEP, MASK])
    tokenizer.encode_special_tokens = True

    numbers: dict[_Sentence, int] = {}  # distinct sentences, numbered as they appear
    columns: list[list[int]] = []  # the number of every good sentence, then of every bad one
    for name in SENTENCES:
        texts = [pair.good if name == SENTENCES[0] else pair.bad for pair in pairs]
        encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
        column = []
        for pair, encoding in zip(pairs, encodings, strict=True):
            size = len(encoding.ids) + 2
            if not 2 < size <= limit:
                raise ValueError(f"{pair.place}: {_wrong_size(name, size, limit)}")
            sentence = _encoded_sentence(encoding, ids, pll)
            column.append(numbers.setdefault(sentence, len(numbers)))
        columns.append(column)

    groups, ranks = _group_by_length(list(numbers))
    good_column, bad_column = columns
    return EncodedPairs(groups, ranks[good_column], ranks[bad_column], ids.get(MASK))


def _encoded_sentence(encoding: Encoding, ids: Mapping[str, int], pll: Pll) -> _Sentence:
    """Returns the ids of a sentence with [CLS] and [SEP], and the number of each token's word.

    Args:
        encoding: The sentence, encoded without [CLS] and [SEP].
        ids: The ids of [CLS] and [SEP].
        pll: "word-l2r", or "original", with which every token is a word by itself.
    """
    tokens = np.array([ids[CLS], *encoding.ids, ids[SEP]], np.int32)
    words = np.arange(len(tokens), dtype=np.int32)
    if pll == "word-l2r":
        words[[0, -1]] = _NO_WORD
        words[1:-1] = np.array(encoding.word_ids, np.int32)
    return tokens.tobytes(), words.tobytes()


def _special_ids(tokenizer: Tokenizer, names: Sequence[str]) -> dict[str, int]:
    """Returns the ids of special tokens, or raises ValueError if the tokenizer lacks one."""
    ids = tokenizer.get_vocab()
    missing = ", ".join(name for name in names if name not in ids)
    if missing:
        raise ValueError(
            f"the model's tokenizer has no {missing}, as BERT's has; give another model"
        )
    return {name: ids[name] for name in names}


def _wrong_size(name: str, size: int, limit: int) -> str:
    """Returns a message about a sentence without tokens, or with too many.

    Args:
        name: The sentence, for the message.
        size: Its number of tokens, with [CLS] and [SEP].
        limit: The most tokens that the model reads.
    """
    if size == 2:
        return f"{name} has no token of the vocabulary, expected a sentence"
    found = f"{name} has {size} tokens with [CLS] and [SEP], and the model reads {limit}"
    return f"{found}; take the pair out, or give a model that reads more"


def _group_by_length(
    sentences: Sequence[_Sentence],
) -> tuple[list[SentenceGroup], NDArray[np.int64]]:
    """Groups sentences by their length.

    Returns:
        The groups, the shortest sentences first; and int64 [sentences], the number of each sentence
        among the sentences of all groups.
    """
    by_length: dict[int, list[int]] = {}
    for number, (tokens, _) in enumerate(sentences):
        by_length.setdefault(len(tokens), []).append(number)
    groups: list[SentenceGroup] = []
    ranks = np.empty(len(sentences), np.int64)
    num_before = 0
    first_score = 0
    for _, members in sorted(by_length.items()):
        input_ids = [np.frombuffer(sentences[number][0], np.int32) for number in members]
        words = [np.frombuffer(sentences[number][1], np.int32) for number in members]
        group = SentenceGroup(np.stack(input_ids), np.stack(words), first_score)
        groups.append(group)
        ranks[members] = num_before + np.arange(len(members))
        num_before += len(members)
        first_score += group.num_scores
    return groups, ranks


def cut_batches(encoded: EncodedPairs, micro_tokens: int) -> list[tuple[SentenceGroup, range]]:
    """Cuts the rows of all groups into batches of at most `micro_tokens`, the longest rows first.

    A row is what the model reads at once. For a masked model it is a copy of a sentence with one
    token masked; the copies of one sentence follow each other. For a left-to-right model it is a
    sentence. A row with more than `micro_tokens` tokens is alone in its batch.

    Returns:
        For each batch the group that its rows belong to, and the range of their indices in the
        group. `make_batch` makes the batch from both.
    """
    cuts = []
    for group in reversed(encoded.groups):
        num_rows = len(group.input_ids) if encoded.mask_id is None else group.num_scores
        size = max(1, micro_tokens // group.input_ids.shape[1])
        cuts += [
            (group, range(start, min(start + size, num_rows))) for start in range(0, num_rows, size)
        ]
    return cuts


def empty_batch() -> ScoreBatch:
    """Returns a batch without rows, for a rank that has fewer batches than others."""
    nothing = np.zeros(0, np.int64)
    return ScoreBatch(np.zeros((0, 0), np.int32), nothing, nothing, 0)


def make_batch(group: SentenceGroup, rows: range, mask_id: int | None) -> ScoreBatch:
    """Makes a batch from some rows of a group.

    Args:
        group: A group that `cut_batches` returned.
        rows: The range of rows that `cut_batches` returned with the group.
        mask_id: `EncodedPairs.mask_id`.
    """
    if mask_id is None:
        return _sentence_rows(group, rows)
    return _masked_copies(group, rows, mask_id)


def _masked_copies(group: SentenceGroup, rows: range, mask_id: int) -> ScoreBatch:
    """Makes a batch for a masked model: each row is a copy of a sentence with one token masked.

    The later tokens of the masked token's word are masked too.
    """
    sentences, places = np.divmod(np.array(rows), group.num_tokens)
    places = places + 1  # [CLS] is not predicted
    input_ids = group.input_ids[sentences]
    words = group.words[sentences]
    length = input_ids.shape[1]
    numbers = np.arange(len(rows))
    labels = input_ids[numbers, places].astype(np.int64)
    is_same_word = words == words[numbers, places][:, None]
    is_later = np.arange(length) >= places[:, None]
    input_ids[is_same_word & is_later] = mask_id
    return ScoreBatch(input_ids, numbers * length + places, labels, group.first_score + rows.start)


def _sentence_rows(group: SentenceGroup, rows: range) -> ScoreBatch:
    """Makes a batch for a left-to-right model: each row is a sentence."""
    input_ids = group.input_ids[rows.start : rows.stop]
    length = input_ids.shape[1]
    starts = length * np.arange(len(rows))
    positions = starts[:, None] + np.arange(group.num_tokens)
    labels = input_ids[:, 1:-1].astype(np.int64)
    first_score = group.first_score + rows.start * group.num_tokens
    return ScoreBatch(input_ids, positions.ravel(), labels.ravel(), first_score)


def token_scores(
    predict: Predict, batches: Iterable[ScoreBatch], num_scores: int, device: torch.device
) -> Tensor:
    """Computes the log-probabilities of the tokens that the batches predict.

    A model in evaluation mode draws no random numbers here.

    Args:
        predict: The model; it returns logits at the positions of a batch.
        batches: The batches. They are read lazily, so one is in memory at a time.
        num_scores: The length of the array of all scores, `EncodedPairs.num_scores`.
        device: The device that the model runs on.

    Returns:
        The array of all scores: float64 [num_scores] on the CPU, in nats. It has 0 for tokens that
        these batches do not predict.
    """
    scores = torch.zeros(num_scores, dtype=torch.float64)
    for batch in batches:
        inputs = pack_sequences(list(batch.input_ids), device)
        labels_M = torch.from_numpy(batch.labels).to(device)
        logits_MV = predict(inputs, torch.from_numpy(batch.positions).to(device))
        nll_M = F.cross_entropy(logits_MV.float(), labels_M, reduction="none")
        scores[batch.first_score : batch.first_score + len(nll_M)] = -nll_M.double().cpu()
    return scores


def sentence_sums(encoded: EncodedPairs, scores: Tensor) -> NDArray[np.float64]:
    """Adds up the scores of the tokens of each sentence.

    The sums are exact, so they do not depend on the order of the tokens.

    Args:
        encoded: The sentences.
        scores: The result of `token_scores`.

    Returns:
        float64 [sentences], in nats, in the order of the groups.
    """
    return np.fromiter(_sums(encoded, scores), np.float64)


def _sums(encoded: EncodedPairs, scores: Tensor) -> Iterator[float]:
    """Yields the sum of each sentence's scores."""
    for group in encoded.groups:
        stop = group.first_score + group.num_scores
        rows = scores[group.first_score : stop].view(-1, group.num_tokens)
        yield from map(math.fsum, rows.tolist())
