"""The heads of fine-tuning and the sums their losses are made of (BERT paper, section 4).

B sequences, T packed tokens, H hidden, I items, L outputs of the head, N logits, G groups.

| kind           | logits | an item is            | its labels                     | loss          |
| -------------- | ------ | --------------------- | ------------------------------ | ------------- |
| classification | [B, L] | a sequence            | one class                      | -log p        |
| regression     | [B, 1] | a sequence            | one number                     | squared error |
| choice         | [B, 1] | choices of a question | which is right                 | -log p        |
| tokens         | [T, L] | a sequence            | a class a token, or IGNORED    | -log p        |
| span           | [T, 2] | a sequence            | the answer's first, last token | mean of both  |

Names, dropout and losses are those of transformers' classes, such as BertForQuestionAnswering.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.model.bert import BertModel, initialize_weights
from trainer.model.config import BertConfig
from trainer.model.packed_inputs import PackedInputs

HeadKind = Literal["classification", "regression", "choice", "tokens", "span"]
IGNORED = -100
"""Label of a token that no loss is made of."""

_POOLED = ("classification", "regression", "choice")
_NUM_OUTPUTS = {"regression": 1, "choice": 1, "span": 2}


@dataclass(frozen=True)
class Head:
    """A head: its kind, names of its classes, and the dropout before it (None: the encoder's)."""

    kind: HeadKind
    labels: tuple[str, ...] = ()
    dropout: float | None = None

    @property
    def num_outputs(self) -> int:
        """Logits a sequence, or a token."""
        return _NUM_OUTPUTS.get(self.kind) or len(self.labels)

    @property
    def reads_pooled(self) -> bool:
        """Whether it reads the pooled first token and not every token."""
        return self.kind in _POOLED


class BertForTask(nn.Module):
    """BERT with one head over packed tokens; made by build_task_model()."""

    def __init__(self, config: BertConfig, head: Head) -> None:
        super().__init__()
        self.config = config
        self.head = head
        self.bert = BertModel(config, has_pooler=head.reads_pooled)
        dropout = config.hidden_dropout if head.dropout is None else head.dropout
        self.dropout = nn.Dropout(0.0 if head.kind == "span" else dropout)
        self.task_head = nn.Linear(config.hidden_size, head.num_outputs)

    def forward(self, inputs: PackedInputs) -> Tensor:
        """Logits [B, L], or [T, L] for heads that read every token."""
        hidden_TH = self.bert.encode(inputs)
        if self.head.reads_pooled:
            borders = inputs.cu_seqlens  # left to right the first token sees nothing but itself
            pooled_B = borders[1:] - 1 if self.config.is_causal else borders[:-1]
            hidden_TH = torch.tanh(self.bert.pooler(hidden_TH.index_select(0, pooled_B)))
        logits: Tensor = self.task_head(self.dropout(hidden_TH))
        return logits


def build_task_model(config: BertConfig, head: Head, seed: int) -> BertForTask:
    """A model with initial weights on the CPU, as trainer.model.bert.build_model makes one."""
    with torch.device("meta"):
        model = BertForTask(config, head)
    model.to_empty(device="cpu")
    initialize_weights(model, config.initializer_range, seed)
    return model


def task_loss_sum(
    head: Head, logits: Tensor, labels: Tensor, cu_seqlens: Tensor, item_starts: Tensor
) -> Tensor:
    """Sum of an item's or token's losses over a micro-batch: a float32 scalar; 0 with no item.

    Labels are flat: [I] int64 or float32, [T] int64, or [2 I] int64 counted in each sequence.
    `cu_seqlens` [B+1] are tokens of sequences, `item_starts` [I+1] sequences of items.
    """
    if not len(labels):
        return logits.float().sum()
    if head.kind in ("classification", "tokens"):
        return F.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")
    if head.kind == "regression":
        return F.mse_loss(logits.float().squeeze(-1), labels, reduction="sum")
    if head.kind == "choice":
        return _grouped_nll(logits[:, 0], item_starts, labels)
    both = zip(logits.unbind(1), labels.view(-1, 2).unbind(1), strict=True)  # first, last
    return torch.stack([_grouped_nll(each, cu_seqlens, of) for each, of in both]).sum() / 2


def count_losses(head: Head, labels: Tensor) -> int:
    """Losses in the sum that task_loss_sum() makes of these labels: what its mean is divided by."""
    if head.kind == "tokens":
        return int((labels != IGNORED).sum())
    return len(labels) // 2 if head.kind == "span" else len(labels)


def _grouped_nll(logits_N: Tensor, starts_G1: Tensor, labels_G: Tensor) -> Tensor:
    """Sum over groups of neighbouring logits of -log softmax at the label in the group."""
    groups = torch.split(logits_N.float(), starts_G1.diff().tolist())
    padded_GN = nn.utils.rnn.pad_sequence(list(groups), batch_first=True, padding_value=-torch.inf)
    return F.cross_entropy(padded_GN, labels_G, reduction="sum")
