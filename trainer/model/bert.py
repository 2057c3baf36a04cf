"""BERT over packed tokens with its pretraining heads: no padding but, at times, in attention.

B sequences, T tokens, H hidden, A heads, D head size, V vocabulary, M masked positions.
Sources: BERT paper, section 3 and appendix A.2; google-research/bert modeling.py. Residual sums are
normalised after each sub-layer (post-LN), GELU is the exact one (erf), positions are learned, the
decoder is tied. With `pre_norm` sums are normalised once, at the end (Xiong et al. 2020).
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from pipeline.seeds import seed_of
from trainer.model.attention import attention
from trainer.model.config import BertConfig
from trainer.model.packed_inputs import PackedInputs


class Embeddings(nn.Module):
    """Sum of word, position and token type embeddings, normalised unless the layers do it first."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word = _embedding(config.vocab_size, config.hidden_size)
        self.position = _embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type = _embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.Identity() if config.pre_norm else _layer_norm(config)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(
        self, input_ids_T: Tensor, token_type_ids_T: Tensor, position_ids_T: Tensor
    ) -> Tensor:
        """Embeddings [T, H]."""
        # Hugging Face adds in this order; another one differs in the last bit.
        embedded_TH = self.word(input_ids_T) + self.token_type(token_type_ids_T)
        embedded_TH = embedded_TH + self.position(position_ids_T)
        hidden_TH: Tensor = self.dropout(self.norm(embedded_TH))
        return hidden_TH


class Layer(nn.Module):
    """Self-attention, then feed-forward; q, k, v are apart, as LAMB has a ratio a parameter."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.attention_dropout = config.attention_dropout
        self.attention_backend = config.attention_backend
        self.is_causal = config.is_causal
        self.pre_norm = config.pre_norm
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.attention_output = nn.Linear(config.hidden_size, config.hidden_size)
        self.attention_norm = _layer_norm(config)
        self.intermediate = nn.Linear(config.hidden_size, config.intermediate_size)
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.output_norm = _layer_norm(config)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(
        self, hidden_TH: Tensor, inputs: PackedInputs, positions_M: Tensor | None = None
    ) -> Tensor:
        """Returns hidden states [T, H] after this layer, or [M, H] at `positions_M` alone."""
        q_TAD, k_TAD, v_TAD = self.project(hidden_TH)
        dropout_p = self.attention_dropout if self.training else 0.0
        context_TAD = attention(
            q_TAD, k_TAD, v_TAD, inputs, dropout_p, self.attention_backend, self.is_causal
        )
        if positions_M is None:
            return self.finish(hidden_TH, context_TAD)
        hidden_MH = hidden_TH.index_select(0, positions_M)
        return self.finish(hidden_MH, context_TAD.index_select(0, positions_M))

    def project(self, hidden_TH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [T, A, D]: what comes before attention."""
        inputs_TH = self.attention_norm(hidden_TH) if self.pre_norm else hidden_TH
        q_TAD, k_TAD, v_TAD = (
            projection(inputs_TH).unflatten(-1, (self.num_heads, -1))
            for projection in (self.query, self.key, self.value)
        )
        return q_TAD, k_TAD, v_TAD

    def finish(self, hidden_TH: Tensor, context_TAD: Tensor) -> Tensor:
        """Hidden states [T, H] after this layer: what comes after attention."""
        hidden_TH = self.dropout(self.attention_output(context_TAD.flatten(-2))) + hidden_TH
        if not self.pre_norm:
            hidden_TH = self.attention_norm(hidden_TH)
        inputs_TH = self.output_norm(hidden_TH) if self.pre_norm else hidden_TH
        inner_TC = F.gelu(self.intermediate(inputs_TH))
        hidden_TH = self.dropout(self.output(inner_TC)) + hidden_TH
        return hidden_TH if self.pre_norm else self.output_norm(hidden_TH)


class BertModel(nn.Module):
    """The encoder with its pooler; `recompute_layers` keeps only each layer's input in training."""

    def __init__(self, config: BertConfig, has_pooler: bool = True) -> None:
        """Without the pooler only encode() may be called, as heads that read every token do."""
        super().__init__()
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.final_norm = _layer_norm(config) if config.pre_norm else nn.Identity()
        self.recompute_layers = False
        size = config.hidden_size
        self.pooler = nn.Linear(size, size) if has_pooler else nn.Identity()

    def forward(self, inputs: PackedInputs) -> tuple[Tensor, Tensor]:
        """Hidden states [T, H] of the last layer and pooled [B, H] of each first token."""
        hidden_TH = self.encode(inputs)
        first_BH = hidden_TH.index_select(0, inputs.cu_seqlens[:-1])
        return hidden_TH, torch.tanh(self.pooler(first_BH))

    def encode(self, inputs: PackedInputs) -> Tensor:
        """Hidden states [T, H] of the last layer, for tasks that need no pooler."""
        hidden_TH: Tensor = self._embed(inputs)
        for layer in self.layers:
            if self.recompute_layers and torch.is_grad_enabled():
                hidden_TH = checkpoint(layer, hidden_TH, inputs, use_reentrant=False)
            else:
                hidden_TH = layer(hidden_TH, inputs)
        normalised_TH: Tensor = self.final_norm(hidden_TH)
        return normalised_TH

    def encode_at(self, inputs: PackedInputs, positions_M: Tensor) -> Tensor:
        """Returns hidden states [M, H] of the last layer at some positions (int64 [M]).

        They equal those of `encode`. The last layer computes these positions alone. If one token of
        a sentence is predicted, that saves most of its work.
        """
        hidden_TH = self._embed(inputs)
        for layer in self.layers[:-1]:
            hidden_TH = layer(hidden_TH, inputs)
        hidden_MH: Tensor = self.final_norm(self.layers[-1](hidden_TH, inputs, positions_M))
        return hidden_MH

    def hidden_states(self, inputs: PackedInputs) -> list[Tensor]:
        """[T, H] of the embeddings and of every layer, as transformers' `output_hidden_states`."""
        states_TH = [self._embed(inputs)]
        for layer in self.layers:
            states_TH.append(layer(states_TH[-1], inputs))
        states_TH[-1] = self.final_norm(states_TH[-1])
        return states_TH

    def _embed(self, inputs: PackedInputs) -> Tensor:
        ids = inputs.input_ids, inputs.token_type_ids, inputs.position_ids
        embedded_TH: Tensor = self.embeddings(*ids)
        return embedded_TH


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


class BertForPreTraining(nn.Module):
    """BERT with the masked language model and next sentence heads; made by build_model()."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config)
        self.mlm_head = MaskedLmHead(config)
        self.nsp_head = nn.Linear(config.hidden_size, 2)

    def forward(self, inputs: PackedInputs, masked_positions: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of both tasks: MLM [M, V] of the masked positions into T (int64 [M]), NSP [B, 2].

        Class 1 of NSP means that B is random. Empty logits are connected to every parameter: ZeRO-2
        needs as many backward passes on every rank. ZeRO-3's hooks look into plain tuples only.
        """
        hidden_TH, pooled_BH = self.bert(inputs)
        masked_MH = hidden_TH.index_select(0, masked_positions)
        return self.mlm_head(masked_MH, self.bert.embeddings.word.weight), self.nsp_head(pooled_BH)


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


def _embedding(num_rows: int, hidden_size: int) -> nn.Embedding:
    """One without initial weights, whose drawing on the meta device takes a second."""
    weight = torch.empty(num_rows, hidden_size)
    return nn.Embedding(num_rows, hidden_size, _weight=weight, _freeze=False)


def _layer_norm(config: BertConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)


def build_model(config: BertConfig, seed: int) -> BertForPreTraining:
    """The model with BERT's initial weights on the CPU, equal on every rank."""
    with torch.device("meta"):
        model = BertForPreTraining(config)
    model.to_empty(device="cpu")
    initialize_weights(model, config.initializer_range, seed)
    return model


@torch.no_grad()
def initialize_weights(module: nn.Module, initializer_range: float, seed: int) -> None:
    """Draws matrices from a normal cut at two standard deviations (google-research/bert).

    Generators are keyed by (seed, name): adding a head changes no other weight.
    """
    norms = {name for name, each in module.named_modules() if isinstance(each, nn.LayerNorm)}
    for name, parameter in module.named_parameters():
        if parameter.ndim > 1:
            # torch takes any 64-bit seed; one bit less keeps it positive on every path.
            key = seed_of(f"{seed}/weights/{name}", num_bytes=8) >> 1
            generator = torch.Generator().manual_seed(key)
            _fill_truncated_normal(parameter, initializer_range, generator)
        else:
            owner, _, leaf = name.rpartition(".")
            parameter.fill_(1.0 if owner in norms and leaf == "weight" else 0.0)


def _fill_truncated_normal(parameter: Tensor, std: float, generator: torch.Generator) -> None:
    """Draws outliers again, as TensorFlow does; nn.init.trunc_normal_ takes five times as long."""
    values = parameter.view(-1).normal_(std=std, generator=generator)
    outliers = torch.nonzero(values.abs() > 2 * std).flatten()
    while len(outliers):
        draws = torch.empty(len(outliers)).normal_(std=std, generator=generator)
        values[outliers] = draws
        outliers = outliers[draws.abs() > 2 * std]


def compile_model(model: BertForPreTraining) -> None:
    """Compiles the model's training passes, in place; those of fewer than 2 tokens stay eager.

    Five functions are compiled, all but attention, whose layout depends on data. Token counts are
    symbolic and layers share graphs, so a run compiles five times however lengths vary.
    """
    _compile([model.bert.embeddings], Embeddings.forward)
    _compile(model.bert.layers, Layer.project)
    _compile(model.bert.layers, Layer.finish)
    _compile([model.mlm_head], MaskedLmHead.forward)
    _compile([model.mlm_head], MaskedLmHead.sums)


def _compile(modules: Iterable[nn.Module], method: Callable[..., Any]) -> None:
    compiled = torch.compile(method, dynamic=True)

    def call(module: nn.Module, *tensors: torch.Tensor) -> Any:
        # 0 and 1 are never symbolic: each would be a graph of its own.
        is_worth_it = module.training and tensors[0].shape[0] > 1
        return (compiled if is_worth_it else method)(module, *tensors)

    for module in modules:
        object.__setattr__(module, method.__name__, partial(call, module))
