"""Computes vectors for texts from the hidden states of a model.

A text is encoded and cut into windows that the model can read. Windows are packed into
micro-batches, and the states of the chosen layers become rows of vectors.

Shapes: R rows of a micro-batch, C columns (one per layer, or one for the pooler), H hidden size.
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
    """A text, or a sentence that is already split into words.

    Attributes:
        number: The number of the text in its file, from 0.
        line: The line of the file where the text begins, from 1.
        text: The text. It is not used if `words` is given.
        words: The words of a sentence, such as one of a CoNLL file, which are encoded one by one;
            None encodes `text`.
    """

    number: int
    line: int
    text: str
    words: tuple[str, ...] | None = None


def plain_texts(texts: Iterable[str]) -> Iterator[InputText]:
    """Yields texts in the form that `FeatureExtractor.encode` takes, lazily.

    The texts are numbered from 0, and count as one line each.

    Args:
        texts: The texts; they may be an iterator.

    Example:
        ```python
        from trainer import FeatureExtractor, open_model, plain_texts

        extractor = FeatureExtractor(open_model("hf"))
        encoded = [extractor.encode(text) for text in plain_texts(["A text.", "Another one."])]
        encoded[1].origin.number    # 1
        ```
    """
    for number, text in enumerate(texts):
        yield InputText(number, number + 1, text)


class Window(NamedTuple):
    """A range of the tokens of a text that the model reads together.

    Attributes:
        start: The first token.
        stop: The token after the last one.
        keep_start: The first token whose vector is taken from this window.
        keep_stop: The token after the last one whose vector is taken from this window. The vector
            of each token is taken from exactly one window.
    """

    start: int
    stop: int
    keep_start: int
    keep_stop: int


class Piece(NamedTuple):
    """A token of a text.

    Attributes:
        id: The token's id.
        token: The token as the vocabulary spells it.
        start: The index of the token's first character in the text, or in the token's word if the
            text is given as words.
        end: The index of the character after the token's last one.
    """

    id: int
    token: str
    start: int
    end: int


class EncodedText(NamedTuple):
    """A text as tokens, cut into windows.

    Attributes:
        origin: The text that was encoded.
        pieces: The tokens of the text, without [CLS] and [SEP]. If the tokenizer removes a word
            entirely, such as a control character, the word is one [UNK].
        first_pieces: For each word, the index in `pieces` of its first token; [0] if the text is
            not given as words.
        unknown_words: How many words the tokenizer removed entirely.
        windows: The windows of `pieces` that the model reads.
    """

    origin: InputText
    pieces: list[Piece]
    first_pieces: list[int]
    unknown_words: int
    windows: list[Window]


@dataclass(frozen=True)
class FeatureRows:
    """The R rows of one micro-batch.

    Attributes:
        texts: [R], the text that each row belongs to.
        index: [R], the index in its text of the token or word that a row stands for; 0 if a row
            stands for a whole text.
        vectors: float32 [R, C, H], a vector for each layer of `FeatureExtractor.layers`, in that
            order; [R, 1, H] for the pooler.
    """

    texts: list[EncodedText]
    index: list[int]
    vectors: NDArray[np.float32]


_TextWindow = tuple[EncodedText, Window]


class FeatureExtractor:
    """Computes vectors for texts with a model.

    Attributes:
        layers: The numbers of the layers, 0 for the embeddings; empty for the pooler.
        columns: The name of each vector of a row, such as "layer_12" or "pooler".

    Example:
        ```python
        from trainer import FeatureExtractor, open_model, plain_texts

        extractor = FeatureExtractor(open_model("runs/base"), layers="-1,-2", rows="mean")
        texts = map(extractor.encode, plain_texts(["a sentence", "another one"]))
        for features in extractor.iterate(texts):
            features.vectors    # float32 [rows, 2 layers, hidden]; here one row per text
        ```
    """

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
        """Builds the model.

        Args:
            opened: The model, from `open_model`.
            layers: Numbers of layers, separated by commas: 0 is the embeddings, -1 the last layer;
                or "all". It is not used for the pooler.
            rows: What a row stands for: "token"; "word", with the vector of its first token; or a
                text, with the vector of [CLS] ("cls"), the mean over its tokens ("mean") or the
                output of the model's pooler ("pooler").
            seq_len: The most tokens of a window, with [CLS] and [SEP]; None means as many as the
                model can read. A longer text is read in windows that overlap by half. For "cls" and
                "pooler" only the first window is read.
            micro_tokens: The most tokens of a forward pass. It bounds memory and changes no result.
            device: The device that the model runs on; None means the CPU.

        Raises:
            ValueError: The model has no such layer or no pooler, cannot read windows of this
                length, or has not BERT's tokenizer.
        """
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
        self._rows = rows
        self._micro_tokens = micro_tokens
        self._device = device or torch.device("cpu")
        self._tokenizer = opened.tokenizer()
        self._tokenizer.encode_special_tokens = True
        ids = self._tokenizer.get_vocab()
        missing = {CLS, SEP, UNK} - ids.keys()
        if missing:
            says = f"its tokenizer has no {', '.join(missing)}, as BERT's has"
            raise ValueError(f"{opened.where}: {says}")
        self._ids = {token: ids[token] for token in (CLS, SEP, UNK)}
        self._bert = opened.build(self._device).bert

    def encode(self, text: InputText) -> EncodedText:
        """Encodes a text, of any length.

        "[MASK]" and the like in the text are encoded as plain text, as in pretraining.

        Args:
            text: The text, such as one of `plain_texts`.

        Raises:
            ValueError: The rows are words, and the text is not given as words.
        """
        if text.words is None and self._rows == "word":
            raise ValueError("rows word asks for words; give a CoNLL file, or rows token")
        units = [text.text] if text.words is None else list(text.words)
        pieces: list[Piece] = []
        first_pieces = []
        num_unknown = 0
        encodings = self._tokenizer.encode_batch(units, add_special_tokens=False)
        for encoding, unit in zip(encodings, units, strict=True):
            first_pieces.append(len(pieces))
            tokens = zip(encoding.ids, encoding.tokens, encoding.offsets, strict=True)
            pieces += [Piece(token_id, token, *offsets) for token_id, token, offsets in tokens]
            if text.words is not None and not encoding.ids:
                num_unknown += 1
                pieces.append(Piece(self._ids[UNK], UNK, 0, len(unit)))
        windows = cut_windows(len(pieces), self._size, max(1, self._size // 2))
        return EncodedText(text, pieces, first_pieces, num_unknown, windows)

    def iterate(self, texts: Iterable[EncodedText]) -> Iterator[FeatureRows]:
        """Yields the rows of the texts, in order, one micro-batch at a time.

        Texts are read lazily, so memory does not grow with their number.

        Args:
            texts: The texts, encoded by `encode`.
        """
        sums: dict[int, NDArray[np.float64]] = {}
        batch: list[_TextWindow] = []
        num_tokens = 0
        count = 1 if self._rows in ("cls", "pooler") else None
        text_windows = ((text, window) for text in texts for window in text.windows[:count])
        for text, window in text_windows:
            size = window.stop - window.start + 2
            if batch and num_tokens + size > self._micro_tokens:
                yield self._read_batch(batch, sums)
                batch = []
                num_tokens = 0
            batch.append((text, window))
            num_tokens += size
        if batch:
            yield self._read_batch(batch, sums)

    @torch.inference_mode()
    def _read_batch(
        self, batch: Sequence[_TextWindow], sums: dict[int, NDArray[np.float64]]
    ) -> FeatureRows:
        """Runs the model on some windows and returns their rows.

        Args:
            batch: The windows, each with its text.
            sums: For a text whose windows began in an earlier micro-batch, by the text's number,
                the sum [C, H] of its vectors so far. The caller passes the same dict in every call,
                and this method updates it. It is used for mean vectors only.
        """
        cls_id = self._ids[CLS]
        sep_id = self._ids[SEP]
        pieces = [text.pieces[window.start : window.stop] for text, window in batch]
        sequences = [[cls_id, *(piece.id for piece in part), sep_id] for part in pieces]
        packed = pack_sequences(sequences, self._device)
        if self._rows == "pooler":
            pooled = self._bert(packed)[1][:, None].float().cpu().numpy()
            return FeatureRows([text for text, _ in batch], [0] * len(batch), pooled)

        states = self._bert.hidden_states(packed)
        texts = []
        indices = []
        positions = []
        for start, (text, window) in zip(packed.cu_seqlens.tolist(), batch, strict=False):
            for index, token in self._rows_of(text, window):
                texts.append(text)
                indices.append(index)
                positions.append(start + 1 + token - window.start)
        positions_R = torch.tensor(positions, dtype=torch.int64, device=self._device)
        chosen_RCH = torch.stack(
            [states[layer].index_select(0, positions_R) for layer in self.layers], dim=1
        )
        vectors = chosen_RCH.float().cpu().numpy()
        if self._rows == "mean":
            return _mean_rows(batch, vectors, sums)
        return FeatureRows(texts, indices, vectors)

    def _rows_of(self, text: EncodedText, window: Window) -> list[tuple[int, int]]:
        """Returns which hidden states of a window become rows.

        For means, these are the states of all tokens that the window keeps.

        Args:
            text: The text.
            window: A window of the text.

        Returns:
            A pair for each row. The first number is the value of `FeatureRows.index`. The second is
            the index in `text.pieces` of the token whose state is taken. The [CLS] in front of a
            window has the index `window.start - 1`.
        """
        if self._rows == "cls":
            return [(0, window.start - 1)]
        if self._rows == "word":
            first_pieces = text.first_pieces
            first_word = bisect_left(first_pieces, window.keep_start)
            stop_word = bisect_left(first_pieces, window.keep_stop)
            return [(word, first_pieces[word]) for word in range(first_word, stop_word)]
        return [(token, token) for token in range(window.keep_start, window.keep_stop)]


def cut_windows(num_tokens: int, size: int, stride: int) -> list[Window]:
    """Cuts a text into windows. There is at least one window, even if the text is empty.

    Windows overlap, so a token can be in several. Its vector is taken from the window in which it
    has most context: where its distance to the nearer end of the window is largest. The earlier
    window wins a tie.

    Args:
        num_tokens: The number of tokens of the text, without [CLS] and [SEP].
        size: The most tokens of a window.
        stride: The number of tokens from the beginning of a window to the beginning of the next
            one. The last window begins earlier, so that it ends with the text.
    """
    assert 1 <= stride <= size, f"stride {stride} must be between 1 and the window's {size} tokens"
    last_start = max(0, num_tokens - size)
    starts = [*range(0, last_start, stride), last_start]
    # Two windows share tokens. The earlier one keeps the first half of them, and the middle one.
    middles = [(start + size + following + 1) // 2 for start, following in pairwise(starts)]
    kept_ranges = pairwise([0, *middles, num_tokens])
    return [
        Window(start, min(start + size, num_tokens), *kept_range)
        for start, kept_range in zip(starts, kept_ranges, strict=True)
    ]


def choose_layers(text: str, num_layers: int) -> tuple[int, ...]:
    """Returns the numbers of layers that a text such as "-1,-2" or "all" names.

    Number 0 is the embeddings, and negative numbers become the positive ones.

    Args:
        text: Numbers separated by commas, or "all".
        num_layers: The number of layers of the model.

    Raises:
        ValueError: The text is malformed, names a layer twice, or one that the model has not.
    """
    named = parse_layers(text)
    if named is None:
        return tuple(range(num_layers + 1))
    wrong = [layer for layer in named if not -num_layers - 1 <= layer <= num_layers]
    if wrong:
        limits = f"0 (embeddings) to {num_layers}, or -{num_layers + 1} to -1"
        raise ValueError(f"layers names {wrong[0]}; the model has {limits}")
    chosen = tuple(layer % (num_layers + 1) for layer in named)
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"layers {text} names a layer twice: they are {chosen}")
    return chosen


def _mean_rows(
    batch: Sequence[_TextWindow], vectors: NDArray[np.float32], sums: dict[int, NDArray[np.float64]]
) -> FeatureRows:
    """Returns the mean vector of every text whose last window is in this micro-batch.

    Args:
        batch: The windows, each with its text.
        vectors: [kept tokens, C, H], the vectors of the tokens that the windows keep, in order.
        sums: For a text whose windows began in an earlier micro-batch, by the text's number, the
            sum [C, H] of its vectors so far. It is changed in place: the sum of a text is put in if
            the text goes on in the next micro-batch, and removed when the text ends.
    """
    texts = []
    means = []
    stop = 0
    for text, window in batch:
        start = stop
        stop = start + window.keep_stop - window.keep_start
        number = text.origin.number
        size = len(text.pieces)
        total = sums.pop(number, 0.0) + vectors[start:stop].sum(axis=0, dtype=np.float64)
        if window.stop < size:
            sums[number] = total
        else:
            texts.append(text)
            means.append(total / max(1, size))
    shape = (len(means), *vectors.shape[1:])
    return FeatureRows(texts, [0] * len(texts), np.array(means, dtype=np.float32).reshape(shape))
