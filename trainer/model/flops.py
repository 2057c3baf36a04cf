"""What BERT's mathematics costs, by stated formulas: parameters, operations, and MFU.

Operations are those of matrix products, two for each multiply-add, as NVIDIA and the PaLM paper
(appendix B) count them. With h hidden, f feed-forward, L layers and V vocabulary, an instance of S
tokens with m masked positions costs
    S * 2L(4h^2 + 2hf)  +  4LhS^2  +  m(2h^2 + 2hV)
forward and three times that in training. Only real tokens count, so padding lowers the MFU and
recomputing does not raise it.
"""

from dataclasses import dataclass

from trainer.model.config import BertConfig

TRAINING_OVER_FORWARD = 3  # a backward pass makes two products for each one of the forward pass


@dataclass(frozen=True)
class Lengths:
    """Real tokens, their squares (for attention), masked positions: means or sums."""

    tokens: float
    squared_tokens: float
    masked: float


def training_flops(config: BertConfig, lengths: Lengths) -> float:
    """Operations of training on an instance or batch of these lengths, forward and backward."""
    h, f, layers = config.hidden_size, config.intermediate_size, config.num_layers
    dense = lengths.tokens * 2 * layers * (4 * h * h + 2 * h * f)
    attention = 4 * layers * h * lengths.squared_tokens
    head = lengths.masked * (2 * h * h + 2 * h * config.vocab_size)
    return TRAINING_OVER_FORWARD * (dense + attention + head)


def num_parameters(config: BertConfig) -> int:
    """Parameters of the model with both pretraining heads, tied ones once."""
    h, f = config.hidden_size, config.intermediate_size
    norm = 2 * h
    rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    embeddings = rows * h + norm
    layer = 4 * (h * h + h) + norm + (h * f + f) + (f * h + h) + norm
    pooler, nsp_head = h * h + h, 2 * h + 2
    mlm_head = h * h + h + norm + config.vocab_size
    return embeddings + config.num_layers * layer + pooler + mlm_head + nsp_head
