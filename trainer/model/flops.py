"""What BERT's mathematics costs, by stated formulas: parameters, operations, and MFU.

As NVIDIA and the PaLM paper (appendix B) count, a multiply-add of a matrix product is two. An
instance of S tokens and m masked positions costs S * 2L(4h^2 + 2hf) + 4LhS^2 + m(2h^2 + 2hV)
forward, and three times that in training. Only real tokens count, and recomputing does not.
"""

from dataclasses import dataclass

from trainer.model.config import BertConfig


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
    # A backward pass makes two products for each one of the forward pass.
    return 3 * (dense + attention + head)


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
