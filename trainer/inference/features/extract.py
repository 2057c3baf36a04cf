"""Texts to vectors: encoded, cut into windows, packed, and states of chosen layers taken out.

T tokens and R rows of a micro-batch, C columns, F their width.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenizer.vocab import CLS, SEP, UNK
from trainer.inference.open_model import OpenedModel
from trainer.inference.settings import Combine, Rows
from trainer.model.packed_inputs import pack_sequences


class InputText(NamedTuple):
    """A text, its number from 0 and line from 1; words are those of a CoNLL sentence."""

    number: int
    line: int
    text: str
    words: tuple[str, ...] | None = None


def plain_texts(texts: Iterable[str]) -> Iterator[InputText]:
    """Texts that are a line each."""
    for number, text in enumerate(texts):
        yield InputText(number, number + 1, text)


class Window(NamedTuple):
    """Tokens start to stop - 1 that the model reads together, and those whose vectors it gives."""

    start: int
    stop: int
    keep_start: int
    keep_stop: int


class EncodedText(NamedTuple):
    """A text as pieces of the vocabulary, without [CLS] and [SEP].

    Attributes:
        offsets: First character and one after the last, of the text; in words, of the word.
        first_pieces: Index of each word's first piece; of plain text 0.
        unknown_words: Words without any piece, such as control characters, for which [UNK] stands.
    """

    origin: InputText
    ids: list[int]
    pieces: list[str]
    offsets: list[tuple[int, int]]
    first_pieces: list[int]
    unknown_words: int
    windows: list[Window]


@dataclass(frozen=True)
class FeatureRows:
    """Rows of one micro-batch, in order of texts and tokens.

    Attributes:
        texts: The text of each row.
        index: Number of the token or word in its text; 0 where a row stands for a text.
        vectors: float32 [R, C, F].
    """

    texts: list[EncodedText]
    index: list[int]
    vectors: NDArray[np.float32]


_Piece = tuple[EncodedText, Window]
"""A window of a text that waits for its micro-batch."""


class FeatureExtractor:
    """A model that gives vectors for texts.

    Attributes:
        layers: Numbers of the layers, 0 the embeddings; none for the pooler.
        columns: Names of the C columns.
        width: F, values of a vector.
    """

    def __init__(
        self,
        opened: OpenedModel,
        *,
        layers: str = "-1",
        combine: Combine = "each",
        rows: Rows = "token",
        seq_len: int | None = None,
        micro_tokens: int = 8_192,
        device: torch.device | None = None,
    ) -> None:
        """Builds the model; see `FeaturesSettings` for what the arguments mean."""
        config = opened.config
        if rows == "pooler":
            opened.check_has(
                ("bert.pooler.",), "the pooler that rows pooler asks; take cls or mean"
            )
        self.layers = () if rows == "pooler" else choose_layers(layers, config.num_layers)
        self.columns = column_names(self.layers, combine)
        beside = len(self.layers) if combine == "concat" and self.layers else 1
        self.width = config.hidden_size * beside
        limit = config.max_position_embeddings
        length = seq_len or limit
        if not 3 <= length <= limit:
            raise ValueError(f"seq_len is {length}; {opened.where} reads 3 to {limit} tokens")
        self._size = length - 2
        self._rows, self._combine, self._micro_tokens = rows, combine, micro_tokens
        self._device = device or torch.device("cpu")
        self._tokenizer = opened.tokenizer()
        self._tokenizer.encode_special_tokens = True
        known = self._tokenizer.get_vocab()
        if missing := {CLS, SEP, UNK} - known.keys():
            says = f"its tokenizer has no {', '.join(missing)}, as BERT's has"
            raise ValueError(f"{opened.where}: {says}")
        self._ids = {token: known[token] for token in (CLS, SEP, UNK)}
        self._bert = opened.build(self._device).bert

    def encode(self, text: InputText) -> EncodedText:
        """A text's pieces; "[MASK]" and the like in it are plain text, as in pretraining."""
        if text.words is None and self._rows == "word":
            raise ValueError("rows word asks for words; give a CoNLL file, or rows token")
        units = [text.text] if text.words is None else list(text.words)
        ids: list[int] = []
        pieces: list[str] = []
        offsets: list[tuple[int, int]] = []
        first_pieces, unknown = [], 0
        encodings = self._tokenizer.encode_batch(units, add_special_tokens=False)
        for encoding, unit in zip(encodings, units, strict=True):
            first_pieces.append(len(ids))
            if text.words is not None and not encoding.ids:
                unknown += 1
                ids.append(self._ids[UNK])
                pieces.append(UNK)
                offsets.append((0, len(unit)))
            ids += encoding.ids
            pieces += encoding.tokens
            offsets += encoding.offsets
        windows = cut_windows(len(ids), self._size, max(1, self._size // 2))
        return EncodedText(text, ids, pieces, offsets, first_pieces, unknown, windows)

    def iterate(self, texts: Iterable[EncodedText]) -> Iterator[FeatureRows]:
        """Rows of the texts, in order; memory is that of one micro-batch."""
        sums: dict[int, NDArray[np.float64]] = {}
        pending: list[_Piece] = []
        num_tokens = 0
        count = 1 if self._rows in ("cls", "pooler") else None
        for text, window in ((each, window) for each in texts for window in each.windows[:count]):
            size = window.stop - window.start + 2
            if pending and num_tokens + size > self._micro_tokens:
                yield self._run(pending, sums)
                pending, num_tokens = [], 0
            pending.append((text, window))
            num_tokens += size
        if pending:
            yield self._run(pending, sums)

    @torch.inference_mode()
    def _run(self, pieces: Sequence[_Piece], sums: dict[int, NDArray[np.float64]]) -> FeatureRows:
        first, last = self._ids[CLS], self._ids[SEP]
        sequences = [[first, *text.ids[each.start : each.stop], last] for text, each in pieces]
        packed = pack_sequences(sequences, self._device)
        if self._rows == "pooler":
            pooled = self._bert(packed)[1][:, None].float().cpu().numpy()
            return FeatureRows([text for text, _ in pieces], [0] * len(pieces), pooled)
        states = self._bert.hidden_states(packed)
        texts, indices, places = [], [], []
        for start, (text, window) in zip(packed.cu_seqlens.tolist(), pieces, strict=False):
            for index, token in self._wanted(text, window):
                texts.append(text)
                indices.append(index)
                places.append(start + 1 + token - window.start)
        places_R = torch.tensor(places, dtype=torch.int64, device=self._device)
        vectors = self._take(states, places_R).float().cpu().numpy()
        if self._rows == "mean":
            return _mean_rows(pieces, vectors, sums)
        return FeatureRows(texts, indices, vectors)

    def _wanted(self, text: EncodedText, window: Window) -> list[tuple[int, int]]:
        """Row index and token of every row of a window; [CLS] is the token before the first."""
        if self._rows == "cls":
            return [(0, window.start - 1)]
        if self._rows == "word":
            firsts = text.first_pieces
            low, high = (
                bisect_left(firsts, each) for each in (window.keep_start, window.keep_stop)
            )
            return [(word, firsts[word]) for word in range(low, high)]
        return [(token, token) for token in range(window.keep_start, window.keep_stop)]

    def _take(self, states: Sequence[Tensor], places_R: Tensor) -> Tensor:
        chosen = [states[layer].index_select(0, places_R) for layer in self.layers]
        chosen_RCH = torch.stack(chosen, dim=1)
        if self._combine == "sum":
            return chosen_RCH.sum(dim=1, keepdim=True)
        return chosen_RCH.flatten(1)[:, None] if self._combine == "concat" else chosen_RCH


def cut_windows(num_tokens: int, size: int, stride: int) -> list[Window]:
    """Windows of `size` tokens at most, one every `stride`; at least one, also of an empty text.

    A token's vector is that of the window in which the nearer of its two ends is farthest from it;
    of two such windows, the earlier one's. The last window ends with the text.
    """
    assert 1 <= stride <= size, f"stride {stride} must be between 1 and the window's {size} tokens"
    last = max(0, num_tokens - size)
    starts = [*range(0, last, stride), last]
    # The token in the middle of what two windows share belongs to the earlier one.
    middles = [(start + size + following + 1) // 2 for start, following in pairwise(starts)]
    kept = pairwise([0, *middles, num_tokens])
    pairs = zip(starts, kept, strict=True)
    return [Window(start, min(start + size, num_tokens), *ends) for start, ends in pairs]


def choose_layers(text: str, num_layers: int) -> tuple[int, ...]:
    """Numbers of layers, 0 the embeddings, from "-1,-2" or "all"."""
    if text == "all":
        return tuple(range(num_layers + 1))
    try:
        named = [int(part) for part in text.split(",")]
    except ValueError as error:
        says = "expected numbers separated by commas, or all"
        raise ValueError(f"layers is {text!r}; {says}") from error
    if wrong := [layer for layer in named if not -num_layers - 1 <= layer <= num_layers]:
        limits = f"0 (embeddings) to {num_layers}, or -{num_layers + 1} to -1"
        raise ValueError(f"layers names {wrong[0]}; the model has {limits}")
    chosen = tuple(layer % (num_layers + 1) for layer in named)
    if len(set(chosen)) < len(chosen):
        names = ", ".join(map(str, chosen))
        raise ValueError(f"layers {text} names a layer twice: they are {names}")
    return chosen


def column_names(layers: Sequence[int], combine: Combine) -> list[str]:
    """Names of the columns of vectors; `layers` is empty for the pooler."""
    if not layers:
        return ["pooler"]
    if combine == "each":
        return [f"layer_{layer}" for layer in layers]
    return [f"{combine}_{'_'.join(map(str, layers))}"]


def _mean_rows(
    pieces: Sequence[_Piece], vectors: NDArray[np.float32], sums: dict[int, NDArray[np.float64]]
) -> FeatureRows:
    """Means of the texts that end in this micro-batch; `sums` keeps that of one that goes on."""
    texts, means = [], []
    stop = 0
    for text, window in pieces:
        start, stop = stop, stop + window.keep_stop - window.keep_start
        key = text.origin.number
        total = sums.pop(key, 0.0) + vectors[start:stop].sum(axis=0, dtype=np.float64)
        if window.stop < len(text.ids):
            sums[key] = total
        else:
            texts.append(text)
            means.append(total / max(1, len(text.ids)))
    shape = (len(means), *vectors.shape[1:])
    return FeatureRows(texts, [0] * len(texts), np.array(means, dtype=np.float32).reshape(shape))
