"""A BiLSTM over fixed vectors of words, with a tag classifier: BERT paper, section 5.3.

T words of B sentences one after another, F width of a vector, L tags.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from trainer.model.packed_inputs import PackedInputs
from trainer.model.task_heads import Head


class VectorStore:
    """Vectors of words in several arrays, by one row number."""

    def __init__(self) -> None:
        self._arrays: list[NDArray[np.float32]] = []
        self._starts = [0]

    def add(self, vectors: NDArray[np.float32]) -> int:
        """Appends an array [rows, F]; the number of its first row."""
        self._arrays.append(vectors)
        self._starts.append(self._starts[-1] + len(vectors))
        return self._starts[-2]

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """[T, F]: the vectors of these rows."""
        places = zip(np.searchsorted(self._starts, rows, side="right") - 1, rows, strict=True)
        return np.stack([self._arrays[n][row - self._starts[n]] for n, row in places])


class BiLstmTagger(nn.Module):
    """Tags of words from vectors that nothing changes; made by build_tagger()."""

    def __init__(
        self, store: VectorStore, width: int, hidden_size: int, num_layers: int, head: Head
    ) -> None:
        super().__init__()
        self.head, self.store = head, store
        dropout = 0.1 if head.dropout is None else head.dropout
        between = dropout if num_layers > 1 else 0.0
        self.lstm = nn.LSTM(width, hidden_size, num_layers, bidirectional=True, dropout=between)
        self.dropout = nn.Dropout(dropout)
        self.task_head = nn.Linear(2 * hidden_size, head.num_outputs)

    def forward(self, inputs: PackedInputs) -> Tensor:
        """Logits [T, L] of words, whose input_ids are rows of the store; connected where T = 0."""
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
    """A tagger on the CPU with weights drawn from the seed; the global generator is untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BiLstmTagger(store, width, hidden_size, num_layers, head)
