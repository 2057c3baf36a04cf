"""Defines BERT over packed tokens, with its pretraining heads.

Nothing is padded, except in attention by the padded back end. Residual sums are normalised after
each sub-layer (post-LN), GELU is the exact one (erf), positions are learned, and the masked
language model head multiplies by the word embeddings, so that both share their weights. With
`pre_norm`, the inputs of sub-layers are normalised instead, and the last residual sum is normalised
once, at the end (Xiong et al. 2020). Sources: BERT paper, section 3 and appendix A.2;
google-research/bert modeling.py.

B sequences, T tokens, H hidden, A heads, D head size, C feed-forward width, V vocabulary, M masked
positions.
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
    """Adds word, position and token type embeddings, and normalises the sum unless `pre_norm`."""

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
        """Returns the embeddings [T, H] of tokens.

        Args:
            input_ids_T: Ids of the tokens, integers.
            token_type_ids_T: 0 in segment A and 1 in segment B, integers.
            position_ids_T: The index of each token in its sequence, integers.
        """
        # The order in which transformers adds: another order differs in the last bit.
        embedded_TH = self.word(input_ids_T) + self.token_type(token_type_ids_T)
        embedded_TH = embedded_TH + self.position(position_ids_T)
        hidden_TH: Tensor = self.dropout(self.norm(embedded_TH))
        return hidden_TH


class Layer(nn.Module):
    """One layer of the encoder: self-attention, then a feed-forward network.

    Query, key and value are separate parameters, because LAMB has one trust ratio per parameter.
    """

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
        """Returns the hidden states after this layer, [T, H] or [M, H].

        Args:
            hidden_TH: Hidden states before this layer.
            inputs: The packed sequences.
            positions_M: Tokens to return, as indices into T, int64; None returns all.
        """
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
        """Computes the part of the layer before attention.

        Returns:
            Queries, keys and values, each [T, A, D].
        """
        inputs_TH = self.attention_norm(hidden_TH) if self.pre_norm else hidden_TH
        q_TAD, k_TAD, v_TAD = (
            projection(inputs_TH).unflatten(-1, (self.num_heads, -1))
            for projection in (self.query, self.key, self.value)
        )
        return q_TAD, k_TAD, v_TAD

    def finish(self, hidden_TH: Tensor, context_TAD: Tensor) -> Tensor:
        """Computes the part of the layer after attention, and returns its hidden states [T, H].

        Args:
            hidden_TH: Hidden states before this layer.
            context_TAD: The result of attention.
        """
        hidden_TH = self.dropout(self.attention_output(context_TAD.flatten(-2))) + hidden_TH
        if not self.pre_norm:
            hidden_TH = self.attention_norm(hidden_TH)
        inputs_TH = self.output_norm(hidden_TH) if self.pre_norm else hidden_TH
        inner_TC = F.gelu(self.intermediate(inputs_TH))
        hidden_TH = self.dropout(self.output(inner_TC)) + hidden_TH
        return hidden_TH if self.pre_norm else self.output_norm(hidden_TH)


class BertModel(nn.Module):
    """The encoder of BERT with its pooler.

    Attributes:
        recompute_layers: Whether training saves memory by keeping only the input of each layer. The
            layer is then computed again in the backward pass.
    """

    def __init__(self, config: BertConfig, has_pooler: bool = True) -> None:
        """Makes the modules.

        Args:
            config: The model's sizes.
            has_pooler: Whether there is a pooler. Without it `forward` must not be called; heads
                that read every token call `encode`.
        """
        super().__init__()
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.final_norm = _layer_norm(config) if config.pre_norm else nn.Identity()
        self.recompute_layers = False
        size = config.hidden_size
        self.pooler = nn.Linear(size, size) if has_pooler else nn.Identity()

    def forward(self, inputs: PackedInputs) -> tuple[Tensor, Tensor]:
        """Runs the encoder and the pooler.

        Returns:
            The hidden states [T, H] of the last layer, and the output [B, H] of the pooler, which
            reads the hidden state of each sequence's first token.
        """
        hidden_TH = self.encode(inputs)
        first_BH = hidden_TH.index_select(0, inputs.cu_seqlens[:-1])
        return hidden_TH, torch.tanh(self.pooler(first_BH))

    def encode(self, inputs: PackedInputs) -> Tensor:
        """Returns hidden states [T, H] of the last layer, without the pooler."""
        hidden_TH: Tensor = self._embed(inputs)
        for layer in self.layers:
            if self.recompute_layers and torch.is_grad_enabled():
                hidden_TH = checkpoint(layer, hidden_TH, inputs, use_reentrant=False)
            else:
                hidden_TH = layer(hidden_TH, inputs)
        normalised_TH: Tensor = self.final_norm(hidden_TH)
        return normalised_TH

    def encode_at(self, inputs: PackedInputs, positions_M: Tensor) -> Tensor:
        """Returns hidden states [M, H] of the last layer at some tokens.

        The result equals the states of `encode` at these tokens. But the last layer computes the
        states of these tokens only, which saves most of its work if one token of a sentence is
        predicted.

        Args:
            inputs: The packed sequences.
            positions_M: The tokens, as indices into T, int64.
        """
        hidden_TH = self._embed(inputs)
        for layer in self.layers[:-1]:
            hidden_TH = layer(hidden_TH, inputs)
        hidden_MH: Tensor = self.final_norm(self.layers[-1](hidden_TH, inputs, positions_M))
        return hidden_MH

    def hidden_states(self, inputs: PackedInputs) -> list[Tensor]:
        """Returns the embeddings and the hidden states after every layer, each [T, H].

        The result has num_layers + 1 tensors, like `output_hidden_states` of transformers. The last
        one is what `encode` returns.
        """
        states_TH = [self._embed(inputs)]
        for layer in self.layers:
            states_TH.append(layer(states_TH[-1], inputs))
        states_TH[-1] = self.final_norm(states_TH[-1])
        return states_TH

    def _embed(self, inputs: PackedInputs) -> Tensor:
        """Returns the embeddings [T, H] of packed sequences."""
        embedded_TH: Tensor = self.embeddings(
            inputs.input_ids, inputs.token_type_ids, inputs.position_ids
        )
        return embedded_TH


class MaskedLmHead(nn.Module):
    """Predicts tokens from hidden states (BERT paper, section 3.1).

    Its last matrix is shared with the word embeddings, and is given to `forward`.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden_MH: Tensor, word_embeddings_VH: Tensor) -> Tensor:
        """Returns logits [M, V] of masked tokens.

        Args:
            hidden_MH: Hidden states of the masked tokens.
            word_embeddings_VH: The embeddings of the vocabulary.
        """
        features_MH = self.norm(F.gelu(self.transform(hidden_MH)))
        return F.linear(features_MH, word_embeddings_VH, self.bias)

    def sums(self, logits_MV: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the result of `masked_lm_sums` for these logits and labels.

        It is a method so that `compile_model` can replace it by a compiled form.
        """
        return masked_lm_sums(logits_MV, labels_M)


class BertForPreTraining(nn.Module):
    """BERT with its masked language model and next sentence heads; `build_model` makes one."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config)
        self.mlm_head = MaskedLmHead(config)
        self.nsp_head = nn.Linear(config.hidden_size, 2)

    def forward(self, inputs: PackedInputs, masked_positions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the logits of both tasks.

        The inputs may have no sequences. The empty logits still depend on every parameter, because
        ZeRO-2 needs the same number of backward passes on every rank. The result is a plain tuple,
        because ZeRO-3's hooks look into no other container.

        Args:
            inputs: The packed sequences.
            masked_positions: The masked tokens, as indices into T, int64 [M].

        Returns:
            The logits [M, V] of the masked tokens, and the logits [B, 2] of next sentence
            prediction. Class 1 of the latter says that segment B is a random one, and class 0 that
            it follows segment A.
        """
        hidden_TH, pooled_BH = self.bert(inputs)
        masked_MH = hidden_TH.index_select(0, masked_positions)
        return self.mlm_head(masked_MH, self.bert.embeddings.word.weight), self.nsp_head(pooled_BH)

    def blocks(self) -> list[nn.Module]:
        """Returns the modules that `forward` calls, in this order.

        Together they have all parameters. A block reads no parameters but its own and those of
        blocks before it, such as the word embeddings. `compile_model` compiles nothing larger than
        a block.
        """
        bert = self.bert
        encoder = [bert.embeddings, *bert.layers, bert.final_norm]
        return [*encoder, bert.pooler, self.mlm_head, self.nsp_head]


def masked_lm_sums(logits_MV: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
    """Sums the losses and the right predictions of the masked language model.

    Args:
        logits_MV: Logits of the masked tokens.
        labels_M: The original tokens, int64.

    Returns:
        Two scalars: the sum of -log p(label), float32, in nats; and the number of tokens whose
        label is the most likely token, int64.
    """
    nll = F.cross_entropy(logits_MV.float(), labels_M, reduction="sum")
    return nll, (logits_MV.argmax(dim=-1) == labels_M).sum()


class PretrainingSums(NamedTuple):
    """Sums of losses and of right predictions over one micro-batch, as scalars on the device.

    A mean loss is a sum divided by the number of masked tokens, or sequences, of the whole step.

    Attributes:
        mlm_nll: Sum of -log p(label) over masked tokens, in nats, float32, differentiable.
        nsp_nll: Sum of -log p(is_random_next) over sequences, in nats, float32, differentiable.
        num_mlm_correct: Masked tokens whose label is the most likely token, int64.
        num_nsp_correct: Sequences for which the more likely answer is right, int64.
    """

    mlm_nll: Tensor
    nsp_nll: Tensor
    num_mlm_correct: Tensor
    num_nsp_correct: Tensor


def pretraining_sums(
    mlm_logits_MV: Tensor,
    nsp_logits_B2: Tensor,
    masked_labels_M: Tensor,
    is_random_next_B: Tensor,
    mlm_sums: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = masked_lm_sums,
) -> PretrainingSums:
    """Returns the sums of losses and of right answers of both tasks (docs/parity.md 2.6).

    Losses are computed in float32, whatever the type of the logits.

    Args:
        mlm_logits_MV: Logits of the masked tokens.
        nsp_logits_B2: Logits of next sentence prediction; class 1 says that segment B is random.
        masked_labels_M: The original tokens, int64.
        is_random_next_B: For each sequence 1 if segment B is random, else 0, int64.
        mlm_sums: The function that computes `masked_lm_sums`, such as the method `sums` of a
            compiled head.
    """
    mlm_nll, num_mlm_correct = mlm_sums(mlm_logits_MV, masked_labels_M)
    nsp_nll = F.cross_entropy(nsp_logits_B2.float(), is_random_next_B, reduction="sum")
    num_nsp_correct = (nsp_logits_B2.argmax(dim=-1) == is_random_next_B).sum()
    return PretrainingSums(mlm_nll, nsp_nll, num_mlm_correct, num_nsp_correct)


def stack_sums(sums: PretrainingSums) -> Tensor:
    """Returns the sums as one float64 tensor, in the order of the fields, without gradients."""
    return torch.stack([value.detach().double() for value in sums])


def zero_sums(device: torch.device) -> Tensor:
    """Returns the sums over no instances, to which results of `stack_sums` can be added.

    It is a float64 tensor on the device, with one value for each field of `PretrainingSums`.
    """
    return torch.zeros(len(PretrainingSums._fields), dtype=torch.float64, device=device)


def name_sums(sums: Tensor) -> dict[str, float]:
    """Returns sums by the names of the fields of `PretrainingSums`.

    Args:
        sums: A result of `stack_sums`, or a sum of such results.
    """
    return dict(zip(PretrainingSums._fields, sums.tolist(), strict=True))


def _embedding(num_rows: int, hidden_size: int) -> nn.Embedding:
    """Returns an embedding with undefined weights.

    torch would draw initial weights, which takes a second even on the meta device.
    """
    weight = torch.empty(num_rows, hidden_size)
    return nn.Embedding(num_rows, hidden_size, _weight=weight, _freeze=False)


def _layer_norm(config: BertConfig) -> nn.LayerNorm:
    """Returns a LayerNorm over hidden states."""
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)


def build_model(config: BertConfig, seed: int) -> BertForPreTraining:
    """Returns a model with BERT's initial weights, on the CPU.

    The weights depend on the seed and the names of parameters only, so they are the same on every
    rank.

    Example:
        ```python
        model = build_model(preset("tiny", vocab_size=30_522), seed=0)
        inputs = pack_sequences([[101, 7592, 103, 102]], torch.device("cpu"))
        mlm_logits, nsp_logits = model(inputs, torch.tensor([2]))  # [1, 30522] and [1, 2]
        ```

    Args:
        config: The model's sizes.
        seed: Seed of the initial weights.
    """
    with torch.device("meta"):
        model = BertForPreTraining(config)
    model.to_empty(device="cpu")
    initialize_weights(model, config.initializer_range, seed)
    return model


@torch.no_grad()
def initialize_weights(module: nn.Module, initializer_range: float, seed: int) -> None:
    """Fills a module with initial weights, as google-research/bert does.

    Matrices are drawn from a normal distribution cut at two standard deviations, biases are 0 and
    the weights of LayerNorm are 1. Each matrix is drawn by a generator of its own, whose seed
    depends on `seed` and on the name of the matrix. Therefore the weights of a matrix do not depend
    on which other matrices the module has.

    Args:
        module: The module to fill, in place.
        initializer_range: The standard deviation.
        seed: Seed of the weights.
    """
    norms = {name for name, child in module.named_modules() if isinstance(child, nn.LayerNorm)}
    for name, parameter in module.named_parameters():
        if parameter.ndim > 1:
            # torch takes any 64-bit seed. One of 63 bits is positive wherever it is read as signed.
            key = seed_of(f"{seed}/weights/{name}", num_bytes=8) >> 1
            generator = torch.Generator().manual_seed(key)
            _fill_truncated_normal(parameter, initializer_range, generator)
        else:
            owner, _, leaf = name.rpartition(".")
            parameter.fill_(1.0 if owner in norms and leaf == "weight" else 0.0)


def _fill_truncated_normal(parameter: Tensor, std: float, generator: torch.Generator) -> None:
    """Fills a tensor from a normal distribution cut at two standard deviations.

    Values beyond two standard deviations are drawn again, as TensorFlow does. The function
    nn.init.trunc_normal_ of torch takes five times as long.
    """
    values = parameter.view(-1).normal_(std=std, generator=generator)
    outliers = torch.nonzero(values.abs() > 2 * std).flatten()
    while len(outliers):
        draws = torch.empty(len(outliers)).normal_(std=std, generator=generator)
        values[outliers] = draws
        outliers = outliers[draws.abs() > 2 * std]


def compile_model(model: BertForPreTraining) -> None:
    """Compiles the methods of a model in which training spends its time, in place.

    They are the embeddings, the two parts of a layer (`Layer.project` and `Layer.finish`), and the
    two methods of the masked language model head. Attention is not compiled, because its layout
    depends on data. Numbers of tokens are symbolic and all layers share graphs, so torch compiles
    these five methods once each, however lengths vary. Evaluation and inputs of fewer than 2 tokens
    are not compiled.
    """
    _compile([model.bert.embeddings], Embeddings.forward)
    _compile(model.bert.layers, Layer.project)
    _compile(model.bert.layers, Layer.finish)
    _compile([model.mlm_head], MaskedLmHead.forward)
    _compile([model.mlm_head], MaskedLmHead.sums)


def _compile(modules: Iterable[nn.Module], method: Callable[..., Any]) -> None:
    """Replaces a method of some modules by one that is compiled for training.

    The new method runs compiled code in training mode, if its first argument has 2 rows or more.
    Otherwise it calls the original method.

    Args:
        modules: The modules, all of one class. They are changed in place.
        method: The method, as a function of the class, such as `Layer.project`.
    """
    compiled = torch.compile(method, dynamic=True)

    def call(module: nn.Module, *tensors: torch.Tensor) -> Any:
        # torch never makes the sizes 0 and 1 symbolic: each would compile one more graph.
        is_worth_it = module.training and tensors[0].shape[0] > 1
        return (compiled if is_worth_it else method)(module, *tensors)

    for module in modules:
        object.__setattr__(module, method.__name__, partial(call, module))
