"""The two pretraining heads: B sequences, M masked positions, H hidden, V vocabulary."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.model.config import BertConfig


class MaskedLmHead(nn.Module):
    """Predicts masked tokens (BERT paper, section 3.1); the decoder is the word embedding."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden_MH: Tensor, word_embeddings_VH: Tensor) -> Tensor:
        """Logits [M, V] of the hidden states of masked positions."""
        features_MH = self.norm(F.gelu(self.transform(hidden_MH)))
        return F.linear(features_MH, word_embeddings_VH, self.bias)

    def sums(self, logits_MV: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
        """`masked_lm_sums` of its logits, for which compile_model puts a graph."""
        return masked_lm_sums(logits_MV, labels_M)


def masked_lm_sums(logits_MV: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of -log p(label) in float32, and of how often the label is the most likely token."""
    nll = F.cross_entropy(logits_MV.float(), labels_M, reduction="sum")
    return nll, (logits_MV.argmax(dim=-1) == labels_M).sum()


class PretrainingSums(NamedTuple):
    """Sums over one micro-batch, scalars on the device; the loop divides them by global counts."""

    mlm_nll: Tensor  # float32, differentiable: of -log p(label) over masked positions, nats
    nsp_nll: Tensor  # float32, differentiable: of -log p(is_random_next) over sequences, nats
    num_mlm_correct: Tensor  # int64: masked positions whose most likely token is the label
    num_nsp_correct: Tensor  # int64: sequences whose pair was judged right


def pretraining_sums(
    mlm_logits_MV: Tensor,
    nsp_logits_B2: Tensor,
    masked_labels_M: Tensor,
    is_random_next_B: Tensor,
    mlm_sums: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = masked_lm_sums,
) -> PretrainingSums:
    """Loss sums and hits of both tasks, in float32 whatever the logits are (docs/parity.md 2.6).

    Labels are int64; class 1 means a random next sentence. A compiled head has its own `mlm_sums`.
    """
    mlm_nll, num_mlm_correct = mlm_sums(mlm_logits_MV, masked_labels_M)
    nsp_nll = F.cross_entropy(nsp_logits_B2.float(), is_random_next_B, reduction="sum")
    num_nsp_correct = (nsp_logits_B2.argmax(dim=-1) == is_random_next_B).sum()
    return PretrainingSums(mlm_nll, nsp_nll, num_mlm_correct, num_nsp_correct)
