"""Texts to vectors: encoded, cut into windows, packed, and states of chosen layers taken out.

T tokens and R rows of a micro-batch, C columns, F their width.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from tokenizer.vocab import CLS, SEP, UNK
from trainer.inference.features.read import InputText
from trainer.inference.features.settings import Combine, Rows
from trainer.inference.features.windows import Window, cut_windows
from trainer.inference.open_model import OpenedModel
from trainer.model.packed_inputs import PackedInputs, pack_sequences


@dataclass(frozen=True)
class EncodedText:
    """A text as pieces of the vocabulary, without [CLS] and [SEP].

    Attributes:
        origin: The text.
        ids: Ids of the text's pieces.
        pieces: The pieces as vocab.txt spells them.
        offsets: First character and one after the last, of the text; in words, of the word.
        first_pieces: Index of each word's first piece; empty for plain text.
        unknown_words: Words without any piece, such as control characters, for which [UNK] stands.
        num_windows: How many windows the model reads it in.
    """

    origin: InputText
    ids: list[int]
    pieces: list[str]
    offsets: list[tuple[int, int]]
    first_pieces: list[int]
    unknown_words: int
    num_windows: int


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


@dataclass(frozen=True)
class _Piece:
    """A window of a text that waits for its micro-batch."""

    text: EncodedText
    window: Window
    is_last: bool


class FeatureExtractor:
    """A model that gives vectors for texts.

    Attributes:
        layers: Numbers of the layers, 0 the embeddings.
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
        """Builds the model; see `FeaturesSettings` for what the arguments mean.

        Raises:
            ValueError: A layer that the model has not, a length that it does not read, or no pooler
                where one is asked.
        """
        config = opened.config
        if rows == "pooler":
            opened.check_has(
                ("bert.pooler.",), "the pooler that rows pooler asks; take cls or mean"
            )
        self.layers = () if rows == "pooler" else choose_layers(layers, config.num_layers)
        self.columns = column_names(self.layers, combine)
        self.width = config.hidden_size * (
            len(self.layers) if combine == "concat" and self.layers else 1
        )
        length = seq_len or config.max_position_embeddings
        if not 3 <= length <= config.max_position_embeddings:
            raise ValueError(
                f"seq_len is {length}; {opened.where} reads 3 to {config.max_position_embeddings} tokens"
            )
        self._size = length - 2
        self._stride = max(1, self._size // 2)
        if micro_tokens < length:
            raise ValueError(
                f"micro_tokens is {micro_tokens}: a window may take {length}; raise it"
            )
        self._rows, self._combine, self._micro_tokens = rows, combine, micro_tokens
        self._device = device or torch.device("cpu")
        self._tokenizer = opened.tokenizer()
        self._tokenizer.encode_special_tokens = True
        self._ids = {
            token: _id_of(self._tokenizer, token, opened.where) for token in (CLS, SEP, UNK)
        }
        self._bert = opened.build(self._device).bert

    def encode(self, text: InputText) -> EncodedText:
        """A text's pieces; "[MASK]" and the like in it are plain text, as in pretraining.

        Raises:
            ValueError: A row is to stand for a word, and the text has none.
        """
        if text.words is None and self._rows == "word":
            raise ValueError(
                f"rows word asks for words, which {text.source} has not; give CoNLL files, or rows token"
            )
        if text.words is None:
            encoding = self._tokenizer.encode(text.text, add_special_tokens=False)
            return self._encoded(text, encoding.ids, encoding.tokens, encoding.offsets, [], 0)
        ids: list[int] = []
        pieces: list[str] = []
        offsets: list[tuple[int, int]] = []
        firsts, unknown = [], 0
        for encoding, word in zip(
            self._tokenizer.encode_batch(list(text.words), add_special_tokens=False),
            text.words,
            strict=True,
        ):
            firsts.append(len(ids))
            unknown += not encoding.ids
            ids += encoding.ids or [self._ids[UNK]]
            pieces += encoding.tokens or [UNK]
            offsets += encoding.offsets or [(0, len(word))]
        return self._encoded(text, ids, pieces, offsets, firsts, unknown)

    def iterate(self, texts: Iterable[EncodedText]) -> Iterator[FeatureRows]:
        """Rows of the texts, in order; memory is that of one micro-batch."""
        sums: dict[int, NDArray[np.float64]] = {}
        pending: list[_Piece] = []
        num_tokens = 0
        for piece in self._pieces(texts):
            size = piece.window.stop - piece.window.start + 2
            if pending and num_tokens + size > self._micro_tokens:
                yield self._run(pending, sums)
                pending, num_tokens = [], 0
            pending.append(piece)
            num_tokens += size
        if pending:
            yield self._run(pending, sums)

    def _encoded(
        self,
        origin: InputText,
        ids: list[int],
        pieces: list[str],
        offsets: list[tuple[int, int]],
        firsts: list[int],
        unknown: int,
    ) -> EncodedText:
        num_windows = len(cut_windows(len(ids), self._size, self._stride))
        return EncodedText(origin, ids, pieces, offsets, firsts, unknown, num_windows)

    def _pieces(self, texts: Iterable[EncodedText]) -> Iterator[_Piece]:
        for text in texts:
            windows = cut_windows(len(text.ids), self._size, self._stride)
            if self._rows in ("cls", "pooler"):
                windows = windows[:1]
            for window in windows:
                yield _Piece(text, window, window is windows[-1])

    @torch.inference_mode()
    def _run(self, pieces: Sequence[_Piece], sums: dict[int, NDArray[np.float64]]) -> FeatureRows:
        packed = self._pack(pieces)
        starts = packed.cu_seqlens.tolist()
        if self._rows == "pooler":
            vectors = _to_numpy(self._bert(packed)[1][:, None])
            return FeatureRows([piece.text for piece in pieces], [0] * len(pieces), vectors)
        states = self._bert.hidden_states(packed)
        wanted = [self._wanted(piece) for piece in pieces]
        places = [
            start + 1 + token - piece.window.start
            for start, piece, tokens in zip(starts, pieces, wanted, strict=False)
            for _, token in tokens
        ]
        vectors = _to_numpy(
            self._take(states, torch.tensor(places, dtype=torch.int64, device=self._device))
        )
        if self._rows == "mean":
            return _mean_rows(pieces, [len(tokens) for tokens in wanted], vectors, sums)
        rows = [
            (piece.text, index)
            for piece, tokens in zip(pieces, wanted, strict=True)
            for index, _ in tokens
        ]
        return FeatureRows([text for text, _ in rows], [index for _, index in rows], vectors)

    def _pack(self, pieces: Sequence[_Piece]) -> PackedInputs:
        first, last = self._ids[CLS], self._ids[SEP]
        sequences = [
            [first, *piece.text.ids[piece.window.start : piece.window.stop], last]
            for piece in pieces
        ]
        return pack_sequences(sequences, self._device)

    def _wanted(self, piece: _Piece) -> list[tuple[int, int]]:
        """Row index and token of every row of a window; [CLS] is the token before the first."""
        window, firsts = piece.window, piece.text.first_pieces
        if self._rows == "cls":
            return [(0, window.start - 1)]
        if self._rows == "word":
            low, high = (
                bisect_left(firsts, token) for token in (window.keep_start, window.keep_stop)
            )
            return [(word, firsts[word]) for word in range(low, high)]
        return [(token, token) for token in range(window.keep_start, window.keep_stop)]

    def _take(self, states: Sequence[Tensor], places_R: Tensor) -> Tensor:
        chosen_RCH = torch.stack(
            [states[layer].index_select(0, places_R) for layer in self.layers], dim=1
        )
        if self._combine == "sum":
            return chosen_RCH.sum(dim=1, keepdim=True)
        return chosen_RCH.flatten(1)[:, None] if self._combine == "concat" else chosen_RCH


def choose_layers(text: str, num_layers: int) -> tuple[int, ...]:
    """Numbers of layers, 0 the embeddings, from "-1,-2" or "all".

    Raises:
        ValueError: Something else, a layer that the model has not, or one named twice.
    """
    if text == "all":
        return tuple(range(num_layers + 1))
    try:
        named = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(
            f"layers is {text!r}; expected numbers separated by commas, or all"
        ) from error
    wrong = [layer for layer in named if not -num_layers - 1 <= layer <= num_layers]
    if wrong:
        raise ValueError(
            f"layers names {wrong[0]}; the model has 0 (embeddings) to {num_layers}, or -{num_layers + 1} to -1"
        )
    chosen = tuple(layer % (num_layers + 1) for layer in named)
    if len(set(chosen)) < len(chosen):
        raise ValueError(
            f"layers {text} names a layer twice: they are {', '.join(map(str, chosen))}"
        )
    return chosen


def column_names(layers: Sequence[int], combine: Combine) -> list[str]:
    """Names of the columns of vectors; `layers` is empty for the pooler."""
    if not layers:
        return ["pooler"]
    if combine == "each":
        return [f"layer_{layer}" for layer in layers]
    return [f"{combine}_{'_'.join(map(str, layers))}"]


def _mean_rows(
    pieces: Sequence[_Piece],
    counts: Sequence[int],
    vectors: NDArray[np.float32],
    sums: dict[int, NDArray[np.float64]],
) -> FeatureRows:
    """Means of the texts that end in this micro-batch; `sums` keeps that of one that goes on."""
    texts, means = [], []
    stop = 0
    for piece, count in zip(pieces, counts, strict=True):
        start, stop = stop, stop + count
        key = piece.text.origin.number
        total = sums.pop(key, 0.0) + vectors[start:stop].sum(axis=0, dtype=np.float64)
        if piece.is_last:
            texts.append(piece.text)
            means.append(total / max(1, len(piece.text.ids)))
        else:
            sums[key] = total
    shape = (len(means), *vectors.shape[1:])
    return FeatureRows(texts, [0] * len(texts), np.array(means, dtype=np.float32).reshape(shape))


def _id_of(tokenizer: Tokenizer, token: str, where: str) -> int:
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(
            f"{where}: its tokenizer has no token {token}; BERT's tokenizer is expected"
        )
    return found


def _to_numpy(tensor: Tensor) -> NDArray[Any]:
    return tensor.float().cpu().numpy()
