"""Defines the heads of fine-tuning, and sums their losses (BERT paper, section 4).

B sequences, T packed tokens, H hidden, I items, L outputs of the head, N logits, G groups.

| kind           | logits | an item is            | its labels                     | loss          |
| -------------- | ------ | --------------------- | ------------------------------ | ------------- |
| classification | [B, L] | a sequence            | one class                      | -log p        |
| regression     | [B, 1] | a sequence            | one number                     | squared error |
| choice         | [B, 1] | choices of a question | index of the right choice      | -log p        |
| tokens         | [T, L] | a sequence            | a class per token, or IGNORED  | -log p        |
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
"""Label of a token that has no loss."""

_POOLED = ("classification", "regression", "choice")
_NUM_OUTPUTS = {"regression": 1, "choice": 1, "span": 2}


@dataclass(frozen=True)
class Head:
    """A head of fine-tuning.

    Attributes:
        kind: What the head predicts: a kind in the table at the top of this module.
        labels: Names of the classes, in the order of the logits; empty if the head predicts no
            classes.
        dropout: Dropout before the head, except that a span has none. None takes the
            `hidden_dropout` of the encoder, or 0.1 in a `BiLstmTagger`.
    """

    kind: HeadKind
    labels: tuple[str, ...] = ()
    dropout: float | None = None

    @property
    def num_outputs(self) -> int:
        """Number of logits per sequence or per token."""
        return _NUM_OUTPUTS.get(self.kind) or len(self.labels)

    @property
    def reads_pooled(self) -> bool:
        """Whether the head reads the output of the pooler, one vector per sequence.

        The pooler reads the first token, or the last one in a left-to-right model. Other heads read
        the hidden state of every token.
        """
        return self.kind in _POOLED


class BertForTask(nn.Module):
    """BERT with the head of a fine-tuning task, over packed tokens.

    `build_task_model` makes one with initial weights.
    """

    def __init__(self, config: BertConfig, head: Head) -> None:
        super().__init__()
        self.config = config
        self.head = head
        self.bert = BertModel(config, has_pooler=head.reads_pooled)
        dropout = config.hidden_dropout if head.dropout is None else head.dropout
        self.dropout = nn.Dropout(0.0 if head.kind == "span" else dropout)
        self.task_head = nn.Linear(config.hidden_size, head.num_outputs)

    def forward(self, inputs: PackedInputs) -> Tensor:
        """Returns logits [B, L], or [T, L] for heads that read every token."""
        hidden_TH = self.bert.encode(inputs)
        if self.head.reads_pooled:
            borders = inputs.cu_seqlens
            # In a left-to-right model the first token sees only itself, the last one sees all.
            pooled_B = borders[1:] - 1 if self.config.is_causal else borders[:-1]
            hidden_TH = torch.tanh(self.bert.pooler(hidden_TH.index_select(0, pooled_B)))
        logits: Tensor = self.task_head(self.dropout(hidden_TH))
        return logits


def build_task_model(config: BertConfig, head: Head, seed: int) -> BertForTask:
    """Returns a model with initial weights on the CPU, drawn as by `build_model`.

    Args:
        config: The model's sizes.
        head: The head.
        seed: Seed of the initial weights.
    """
    with torch.device("meta"):
        model = BertForTask(config, head)
    model.to_empty(device="cpu")
    initialize_weights(model, config.initializer_range, seed)
    return model


def task_loss_sum(
    head: Head, logits: Tensor, labels: Tensor, cu_seqlens: Tensor, item_starts: Tensor
) -> Tensor:
    """Returns the sum of the losses of a micro-batch, as a float32 scalar.

    If the micro-batch has no items the sum is 0, but it is still computed from the logits, so that
    gradients exist.

    Args:
        head: The head.
        logits: The result of the model, of the shape in the table at the top of this module.
        labels: By the kind of head: for classification int64 [I] classes; for choice int64 [I]
            indices of the right choices; for regression float32 [I] numbers; for tokens int64 [T]
            classes; for span int64 [2 I], the first and the last token of each answer in turn, as
            positions in the sequence.
        cu_seqlens: Where each sequence begins in the tokens, and where the last ends, [B+1].
        item_starts: Where each item begins in the sequences, and where the last ends, [I+1].
    """
    if not len(labels):
        return logits.float().sum()
    if head.kind in ("classification", "tokens"):
        return F.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")
    if head.kind == "regression":
        return F.mse_loss(logits.float().squeeze(-1), labels, reduction="sum")
    if head.kind == "choice":
        return _grouped_nll(logits[:, 0], item_starts, labels)
    first_logits, last_logits = logits.unbind(1)
    first_labels, last_labels = labels.view(-1, 2).unbind(1)
    first_nll = _grouped_nll(first_logits, cu_seqlens, first_labels)
    last_nll = _grouped_nll(last_logits, cu_seqlens, last_labels)
    return torch.stack([first_nll, last_nll]).sum() / 2


def count_losses(head: Head, labels: Tensor) -> int:
    """Returns how many losses the sum of `task_loss_sum` has for some labels.

    The mean loss is that sum divided by this number. There is one loss per token with a class if
    the head predicts a class for each token, and otherwise one loss per item.

    Args:
        head: The head.
        labels: The labels of some items, as `task_loss_sum` takes them.
    """
    if head.kind == "tokens":
        return int((labels != IGNORED).sum())
    return len(labels) // 2 if head.kind == "span" else len(labels)


def _grouped_nll(logits_N: Tensor, starts_G1: Tensor, labels_G: Tensor) -> Tensor:
    """Returns the sum of -log softmax at the label, over G groups of neighbouring logits.

    Args:
        logits_N: The logits of all groups.
        starts_G1: Where each group begins, and where the last one ends.
        labels_G: For each group the index of the right logit in the group, int64.
    """
    groups = torch.split(logits_N.float(), starts_G1.diff().tolist())
    padded_GN = nn.utils.rnn.pad_sequence(list(groups), batch_first=True, padding_value=-torch.inf)
    return F.cross_entropy(padded_GN, labels_G, reduction="sum")
