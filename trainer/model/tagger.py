"""Tags words by a BiLSTM over fixed vectors of the words (BERT paper, section 5.3).

T words of B sentences, one sentence after another; F width of a vector, L tags.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from trainer.model.packed_inputs import PackedInputs
from trainer.model.task_heads import Head


class VectorStore:
    """Holds the vectors of words, each under a row number.

    Vectors are added in several arrays. The row numbers of an array continue those of the arrays
    before it.
    """

    def __init__(self) -> None:
        self._arrays: list[NDArray[np.float32]] = []
        self._starts = [0]

    def add(self, vectors: NDArray[np.float32]) -> int:
        """Appends an array [rows, F], and returns the row number of its first vector."""
        self._arrays.append(vectors)
        self._starts.append(self._starts[-1] + len(vectors))
        return self._starts[-2]

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Returns the vectors [T, F] with the row numbers `rows` [T]."""
        array_numbers = np.searchsorted(self._starts, rows, side="right") - 1
        return np.stack(
            [
                self._arrays[number][row - self._starts[number]]
                for number, row in zip(array_numbers, rows, strict=True)
            ]
        )


class BiLstmTagger(nn.Module):
    """Predicts the tags of words from their fixed vectors; `build_tagger` makes one."""

    def __init__(
        self, store: VectorStore, width: int, hidden_size: int, num_layers: int, head: Head
    ) -> None:
        """Makes the modules.

        Args:
            store: The vectors of the words, which training does not change.
            width: Width F of a vector.
            hidden_size: Width of each direction of the LSTM.
            num_layers: Number of layers of the LSTM.
            head: The tags, and the dropout before the classifier.
        """
        super().__init__()
        self.head = head
        self.store = store
        dropout = 0.1 if head.dropout is None else head.dropout
        # Dropout between the layers of the LSTM; torch warns if there is only one.
        between = dropout if num_layers > 1 else 0.0
        self.lstm = nn.LSTM(width, hidden_size, num_layers, bidirectional=True, dropout=between)
        self.dropout = nn.Dropout(dropout)
        self.task_head = nn.Linear(2 * hidden_size, head.num_outputs)

    def forward(self, inputs: PackedInputs) -> Tensor:
        """Returns the logits [T, L] of words.

        If there are no words, the empty result still depends on every parameter, because ZeRO
        needs a backward pass.

        Args:
            inputs: The sentences. `input_ids` are not ids of tokens but the row number of each
                word's vector in the store.
        """
        weight = self.task_head.weight
        if not len(inputs.input_ids):
            zero = torch.stack([parameter.sum() for parameter in self.parameters()]).sum() * 0.0
            return weight.new_zeros(0, self.head.num_outputs) + zero
        rows = inputs.input_ids.cpu().numpy().astype(np.int64)
        vectors_TF = torch.from_numpy(self.store.take(rows))
        sentences = torch.split(vectors_TF.to(weight), inputs.cu_seqlens.diff().tolist())
        states, _ = self.lstm(pack_sequence(list(sentences), enforce_sorted=False))
        logits_TL: Tensor = self.task_head(self.dropout(torch.cat(unpack_sequence(states))))
        return logits_TL


def build_tagger(
    store: VectorStore, width: int, hidden_size: int, num_layers: int, head: Head, seed: int
) -> BiLstmTagger:
    """Returns a tagger with initial weights, on the CPU.

    Args:
        store: The vectors of the words.
        width: Width F of a vector.
        hidden_size: Width of each direction of the LSTM.
        num_layers: Number of layers of the LSTM.
        head: The tags, and the dropout before the classifier.
        seed: Seed of the weights. torch's global generator is not changed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BiLstmTagger(store, width, hidden_size, num_layers, head)
