"""Texts to vectors: encoded, cut into windows, packed, and states of chosen layers taken out.

R rows of a micro-batch, C columns (a layer each, or the pooler), H hidden.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tokenizer.vocab import CLS, SEP, UNK
from trainer.inference.open_model import OpenedModel
from trainer.inference.settings import Rows, parse_layers
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


class Piece(NamedTuple):
    """A piece of the vocabulary: characters start to end - 1 of the text, or of the word."""

    id: int
    token: str
    start: int
    end: int


class EncodedText(NamedTuple):
    """A text as pieces; words without any, such as control characters, are [UNK] and counted."""

    origin: InputText
    pieces: list[Piece]
    first_pieces: list[int]
    unknown_words: int
    windows: list[Window]


@dataclass(frozen=True)
class FeatureRows:
    """Rows of a micro-batch: text, number of the token or word in it, and vectors [R, C, H]."""

    texts: list[EncodedText]
    index: list[int]
    vectors: NDArray[np.float32]


_Read = tuple[EncodedText, Window]


class FeatureExtractor:
    """A model that gives vectors for texts, of `layers` (0: the embeddings; none: the pooler)."""

    def __init__(
        self,
        opened: OpenedModel,
        *,
        layers: str = "-1",
        rows: Rows = "token",
        seq_len: int | None = None,
        micro_tokens: int = 8_192,
        device: torch.device | None = None,
    ) -> None:
        """Builds the model; see `FeaturesSettings` for what the arguments mean."""
        config = opened.config
        self.layers: tuple[int, ...] = ()
        if rows == "pooler":
            what = "the pooler that rows pooler asks; take cls or mean"
            opened.check_has(("bert.pooler.",), what)
        else:
            self.layers = choose_layers(layers, config.num_layers)
        self.columns = [f"layer_{layer}" for layer in self.layers] or ["pooler"]
        limit = config.max_position_embeddings
        length = seq_len or limit
        if not 3 <= length <= limit:
            raise ValueError(f"seq_len is {length}; {opened.where} reads 3 to {limit} tokens")
        self._size = length - 2
        self._rows, self._micro_tokens = rows, micro_tokens
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
        pieces: list[Piece] = []
        first_pieces, num_unknown = [], 0
        encodings = self._tokenizer.encode_batch(units, add_special_tokens=False)
        for encoding, unit in zip(encodings, units, strict=True):
            first_pieces.append(len(pieces))
            found = zip(encoding.ids, encoding.tokens, encoding.offsets, strict=True)
            pieces += [Piece(number, token, *place) for number, token, place in found]
            if text.words is not None and not encoding.ids:
                num_unknown += 1
                pieces.append(Piece(self._ids[UNK], UNK, 0, len(unit)))
        windows = cut_windows(len(pieces), self._size, max(1, self._size // 2))
        return EncodedText(text, pieces, first_pieces, num_unknown, windows)

    def iterate(self, texts: Iterable[EncodedText]) -> Iterator[FeatureRows]:
        """Rows of the texts, in order; memory is that of one micro-batch."""
        sums: dict[int, NDArray[np.float64]] = {}
        pending: list[_Read] = []
        num_tokens = 0
        count = 1 if self._rows in ("cls", "pooler") else None
        read = ((each, window) for each in texts for window in each.windows[:count])
        for text, window in read:
            size = window.stop - window.start + 2
            if pending and num_tokens + size > self._micro_tokens:
                yield self._run(pending, sums)
                pending, num_tokens = [], 0
            pending.append((text, window))
            num_tokens += size
        if pending:
            yield self._run(pending, sums)

    @torch.inference_mode()
    def _run(self, read: Sequence[_Read], sums: dict[int, NDArray[np.float64]]) -> FeatureRows:
        first, last = self._ids[CLS], self._ids[SEP]
        parts = [text.pieces[window.start : window.stop] for text, window in read]
        sequences = [[first, *(piece.id for piece in part), last] for part in parts]
        packed = pack_sequences(sequences, self._device)
        if self._rows == "pooler":
            pooled = self._bert(packed)[1][:, None].float().cpu().numpy()
            return FeatureRows([text for text, _ in read], [0] * len(read), pooled)
        states = self._bert.hidden_states(packed)
        texts, indices, places = [], [], []
        for start, (text, window) in zip(packed.cu_seqlens.tolist(), read, strict=False):
            for index, token in self._wanted(text, window):
                texts.append(text)
                indices.append(index)
                places.append(start + 1 + token - window.start)
        places_R = torch.tensor(places, dtype=torch.int64, device=self._device)
        chosen_RCH = torch.stack([states[n].index_select(0, places_R) for n in self.layers], dim=1)
        vectors = chosen_RCH.float().cpu().numpy()
        if self._rows == "mean":
            return _mean_rows(read, vectors, sums)
        return FeatureRows(texts, indices, vectors)

    def _wanted(self, text: EncodedText, window: Window) -> list[tuple[int, int]]:
        """Row index and token of every row of a window; [CLS] is the token before the first."""
        if self._rows == "cls":
            return [(0, window.start - 1)]
        if self._rows == "word":
            firsts, kept = text.first_pieces, (window.keep_start, window.keep_stop)
            words = range(*(bisect_left(firsts, each) for each in kept))
            return [(word, firsts[word]) for word in words]
        return [(token, token) for token in range(window.keep_start, window.keep_stop)]


def cut_windows(num_tokens: int, size: int, stride: int) -> list[Window]:
    """Windows of `size` tokens at most, one every `stride`; at least one, also of an empty text.

    A token's vector is that of the window in which the nearer of its two ends is farthest from it;
    of two such windows, the earlier one's.
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
    named = parse_layers(text)
    if named is None:
        return tuple(range(num_layers + 1))
    if wrong := [layer for layer in named if not -num_layers - 1 <= layer <= num_layers]:
        limits = f"0 (embeddings) to {num_layers}, or -{num_layers + 1} to -1"
        raise ValueError(f"layers names {wrong[0]}; the model has {limits}")
    chosen = tuple(layer % (num_layers + 1) for layer in named)
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"layers {text} names a layer twice: they are {chosen}")
    return chosen


def _mean_rows(
    read: Sequence[_Read], vectors: NDArray[np.float32], sums: dict[int, NDArray[np.float64]]
) -> FeatureRows:
    """Means of the texts that end in this micro-batch; `sums` keeps that of one that goes on."""
    texts, means = [], []
    stop = 0
    for text, window in read:
        start, stop = stop, stop + window.keep_stop - window.keep_start
        key, size = text.origin.number, len(text.pieces)
        total = sums.pop(key, 0.0) + vectors[start:stop].sum(axis=0, dtype=np.float64)
        if window.stop < size:
            sums[key] = total
        else:
            texts.append(text)
            means.append(total / max(1, size))
    shape = (len(means), *vectors.shape[1:])
    return FeatureRows(texts, [0] * len(texts), np.array(means, dtype=np.float32).reshape(shape))
