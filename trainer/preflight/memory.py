"""Computes how much memory a rank needs: throughout a run, and at the fullest moment of a step.

Let P be the bytes of all parameters in fp32, and N the number of ranks. A rank always holds:

    weights            P in fp32, P / 2 in bf16; divided by N under ZeRO-3
    fp32 weights       P / N under ZeRO, the share that the rank updates; P in bf16 without ZeRO
    moments            2 P, or 2 P / N under ZeRO: the two running means of the optimizer
    checkpoint copies  the tensors that rank 0 writes, copied to the host at the start

To this a step adds the memory of its fullest moment: the loss, the end of the backward pass, the
reduction of gradients, or the update. Gradients are summed in fp32, in buckets. Under ZeRO-1 and 2
a rank frees each bucket when it has been sent (trainer/engine/gradients.py). All numbers are bytes
of tensors; the allocator rounds them up a little. tests/trainer/test_memory.py compares them with
the bytes of real tensors.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from trainer.engine.deepspeed_config import (
    BUCKET_ELEMENTS,
    MOST_ON_THE_WAY,
    bucket_elements,
)
from trainer.engine.muon_costs import count_muon_costs
from trainer.model.config import BertConfig, num_parameters

_FP32 = 4


@dataclass(frozen=True)
class Case:
    """The sizes that the memory of a rank depends on.

    Attributes:
        config: The model.
        ranks: Number of ranks.
        zero_stage: ZeRO stage, 0 to 3.
        optimizer: Name of the optimizer, "adamw", "lamb" or "muon".
        muon_precision: Number format in which Muon orthogonalises.
        precision: Number format of the forward and backward passes.
        micro_tokens: The most tokens of a micro-batch.
        seq_len: Tokens of the longest instance. It matters on CPUs only, where attention keeps
            matrices of seq_len by seq_len.
        micro_batches: Micro-batches of a rank in one step. If there are several, the gradients of
            the earlier ones stay in memory during the later ones.
        recomputes: Whether activations are computed again in the backward pass.
        is_compiled: Whether the model is compiled.
        is_cpu: Whether ranks compute on CPUs. The copies for checkpoints are then in the same
            memory as the model.
        masked_share: Share of the tokens that are predicted.
        bucket_size: The most elements of a bucket of gradients. None takes the size that a run has
            by default.
    """

    config: BertConfig
    ranks: int
    zero_stage: int
    optimizer: str = "adamw"
    muon_precision: Literal["fp32", "bf16"] = "fp32"
    precision: Literal["fp32", "bf16"] = "fp32"
    micro_tokens: int = 16_384
    seq_len: int = 128
    micro_batches: int = 2
    recomputes: bool = False
    is_compiled: bool = False
    is_cpu: bool = False
    masked_share: float = 0.15
    bucket_size: int | None = None

    @property
    def value_bytes(self) -> int:
        """Bytes of one weight or activation in the forward and backward passes."""
        return 2 if self.precision == "bf16" else _FP32

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters of the model in fp32, and so of all their gradients."""
        return _FP32 * num_parameters(self.config)

    @property
    def own_parameter_bytes(self) -> float:
        """Bytes of the parameters that a rank updates, in fp32."""
        return self.parameter_bytes / self.ranks if self.zero_stage else self.parameter_bytes

    @property
    def earlier_gradient_bytes(self) -> float:
        """Bytes of the gradients that a step has summed over its micro-batches before the last one.

        It is 0 if the step has a single micro-batch.
        """
        if self.micro_batches == 1:
            return 0.0
        return self.own_parameter_bytes if self.zero_stage == 3 else self.parameter_bytes

    @property
    def is_partitioned(self) -> bool:
        """Whether gradients are reduce-scattered in buckets, as under ZeRO-1 and 2."""
        return self.zero_stage in (1, 2) and self.ranks > 1


class Memory(NamedTuple):
    """The memory of one rank.

    Attributes:
        held: Bytes that are held throughout the run, by the names of what holds them, such as
            "weights".
        fullest: Name of the moment of a step that takes the most memory: "loss", "end of the
            backward pass", "reduction" or "update".
        in_step: Bytes that are added at this moment, by the names of what takes them.
    """

    held: dict[str, int]
    fullest: str
    in_step: dict[str, int]

    @property
    def total(self) -> int:
        """Bytes of all tensors at the fullest moment."""
        return sum(self.held.values()) + sum(self.in_step.values())


def count_memory(case: Case) -> Memory:
    """Returns the memory of rank 0, which needs the most because it writes the model's weights."""
    moments = {"loss": _loss(case), "update": _update(case), **_reduction(case)}
    fullest = max(moments, key=lambda name: sum(moments[name].values()))
    return Memory(_rounded(_held(case)), fullest, _rounded(moments[fullest]))


def _rounded(terms: dict[str, float]) -> dict[str, int]:
    """Rounds each term of a sum of memory to whole bytes, and leaves out terms of 0 bytes."""
    return {name: round(size) for name, size in terms.items() if size}


def _held(case: Case) -> dict[str, float]:
    """Returns the bytes that a rank holds throughout a run, by the names in the module's table."""
    weights = case.value_bytes * num_parameters(case.config)
    is_apart = case.zero_stage > 0 or case.precision == "bf16"
    # A checkpoint has both running means, and fp32 weights unless the model's own are fp32.
    copies = weights + (2 if case.precision == "fp32" else 3) * case.own_parameter_bytes
    return {
        "weights": weights / case.ranks if case.zero_stage == 3 else weights,
        "fp32 weights": case.own_parameter_bytes if is_apart else 0,
        "moments": 2 * case.own_parameter_bytes,
        "checkpoint copies": copies if case.is_cpu else 0,
    }


def activation_bytes(case: Case) -> int:
    """Returns the bytes that the forward pass of one micro-batch keeps for the backward pass.

    A layer keeps 16 values for each token and hidden unit: its input, query, key, value and context
    (5); the sum and the LayerNorm after attention, and the sum after the feed-forward part (3); and
    the feed-forward part before and after GELU (8, because it is 4 times as wide). Dropout keeps
    two masks, which take one byte each on a GPU.

    Plain torch on a CPU keeps these masks as values, and query, key and value a second time with
    padding. With attention dropout it also keeps attention's matrix three times, and without it one
    more context.
    """
    config = case.config
    masks = 2 * (case.config.hidden_dropout > 0)
    a_unit: float = case.value_bytes * 16 + masks
    if case.is_cpu:
        matrix = 3 * config.num_heads * case.seq_len / config.hidden_size
        a_unit = case.value_bytes * (19 + masks + (matrix if config.attention_dropout else 1))
    units = config.hidden_size * case.micro_tokens
    inputs = case.value_bytes * units
    if case.recomputes:  # inputs of all layers, and one layer's insides at a time
        return round(a_unit * units + config.num_layers * inputs)
    return round(config.num_layers * a_unit * units + 4 * inputs)


def _loss(case: Case) -> dict[str, float]:
    """Returns the bytes that a step needs while it computes the loss, added to those of `_held`.

    All activations are in memory then. The logits are in memory three times, or twice if the model
    is compiled.

    Returns:
        Bytes by the names of what takes them: "activations", "gradients" and "logits".
    """
    masked = 1.0 if case.config.is_causal else case.masked_share
    logit = case.value_bytes if case.is_compiled else _FP32  # plain passes copy logits to fp32
    logits = logit * case.config.vocab_size * masked * case.micro_tokens
    kept = {"activations": activation_bytes(case), "gradients": case.earlier_gradient_bytes}
    return {**kept, "logits": (2 if case.is_compiled else 3) * logits}


def _reduction(case: Case) -> dict[str, dict[str, float]]:
    """Returns the bytes that a step adds at two of its moments: moment, then name, then bytes.

    The moments are "end of the backward pass", and the "reduction" of gradients over the ranks that
    follows it.

    The gradient of the word embedding is computed last. The embedding is used twice in the model,
    for the lookup of the input tokens and in the decoder. So at the end of the backward pass three
    tensors of its size are in memory: the gradient of each use, and their sum.
    """
    tied = case.config.vocab_size * case.config.hidden_size
    if case.zero_stage == 3:
        return _reduction_of_zero3(case, tied)
    last = _last_bucket(case, tied)
    end: dict[str, float] = {"gradients": case.parameter_bytes}
    reduction: dict[str, float] = {"gradients": case.parameter_bytes}
    if case.is_partitioned:
        if case.micro_batches == 1:  # of the sums, the last bucket and those on the way are left
            # A matrix that is larger than a bucket is sent alone.
            matrix = case.config.hidden_size * case.config.intermediate_size
            left = last + MOST_ON_THE_WAY * _FP32 * max(matrix, _bucket_elements(case))
            end = {"gradients": min(case.parameter_bytes, left + case.own_parameter_bytes)}
        copies = 2 if case.is_cpu else 1  # Gloo copies what it sends
        reduction = {"gradients": case.own_parameter_bytes, "buckets": copies * last}
    embedding = 3 * case.value_bytes * tied
    return {
        "end of the backward pass": {**end, "gradient of the embedding": embedding},
        "reduction": reduction,
    }


def _last_bucket(case: Case, tied: int) -> float:
    """Returns the bytes of the bucket of gradients that is sent last.

    It has the gradient of the word embedding, which is computed last.

    Args:
        case: The sizes.
        tied: Number of elements of the word embedding.
    """
    return min(case.parameter_bytes, _FP32 * max(tied, _bucket_elements(case)))


def _bucket_elements(case: Case) -> int:
    """Returns the most elements of a bucket under ZeRO-0 to 2."""
    return case.bucket_size or BUCKET_ELEMENTS


def _reduction_of_zero3(case: Case, tied: int) -> dict[str, dict[str, float]]:
    """Returns the result of `_reduction` for ZeRO-3.

    DeepSpeed collects gradients in a bucket, whose memory it reserves at once, however large the
    model is. To reduce them, it copies them into a flat buffer of their size. Both are in memory
    during the reduction. A gradient that is larger than the bucket is reduced alone.

    Args:
        case: The sizes.
        tied: Number of elements of the word embedding.
    """
    count = num_parameters(case.config)
    elements = case.bucket_size or bucket_elements(count, tied)
    bucket = _FP32 * elements
    flat = _FP32 * max(tied, min(count, elements))
    # If all gradients are in one bucket, they are reduced at the end only.
    gradients = case.earlier_gradient_bytes + (case.own_parameter_bytes if count > elements else 0)
    end = {"gradients": gradients, "buckets": bucket}
    return {
        "end of the backward pass": {
            **end,
            "gradient of the embedding": 3 * case.value_bytes * tied,
        },
        "reduction": {"gradients": gradients, "buckets": bucket + flat},
    }


def _update(case: Case) -> dict[str, float]:
    """Returns the bytes that a step adds while the optimizer updates the weights, by name.

    Every optimizer needs the gradients of the parameters that the rank updates. Added to these are:

        AdamW        under ZeRO-3 a flat copy of these gradients, which DeepSpeed makes
        LAMB         an update for each parameter, and on several ranks under ZeRO also estimates of
                     both running means
        Muon         its largest matrix four times; and of the matrices that ZeRO splits over
                     several ranks, parts that are sent and whole matrices that are received
    """
    copies = 3 if case.zero_stage and case.ranks > 1 else 1
    flat = case.own_parameter_bytes * (case.zero_stage == 3)
    return {
        "gradients": case.own_parameter_bytes,
        "flat gradients": flat,
        "updates of LAMB": copies * case.own_parameter_bytes if case.optimizer == "lamb" else 0,
        "matrices of Muon": _muon_matrices(case) if case.optimizer == "muon" else 0,
    }


def _muon_matrices(case: Case) -> float:
    """Returns the bytes that Muon needs while it orthogonalises the matrices of a rank."""
    value = 2 if case.muon_precision == "bf16" else _FP32
    largest = case.config.hidden_size * case.config.intermediate_size
    costs = count_muon_costs(case.config, case.zero_stage, case.ranks, _bucket_elements(case))
    return value * (4 * largest + costs.exchanged)
