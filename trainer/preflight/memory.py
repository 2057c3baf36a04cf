"""How much memory a rank takes throughout, and in the fullest moment of a step.

With P parameters of 4 bytes each in fp32 and N ranks, a rank holds

    weights            P; in bf16 half of it; under ZeRO-3 an Nth
    fp32 weights       P / N: what ZeRO updates; in bf16 without ZeRO P
    moments            2 P, or 2 P / N under ZeRO: both running means
    gradient sums      P: in bf16 under ZeRO-1
    checkpoint copies  on the host: what rank 0 writes, made before the first step and kept

and the most of loss, end of the backward pass, reduction and update on top. Bytes of tensors
are exact but for alignment (tests/trainer/test_memory.py counts them).
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from trainer.engine.deepspeed_config import LARGEST_BUCKET, bucket_elements
from trainer.model.config import BertConfig, num_parameters

_FP32 = 4


@dataclass(frozen=True)
class Case:
    """What the memory of a rank depends on: sizes, and what of a step is kept.

    Of several micro-batches all but the last leave gradients. Attention on a CPU keeps its matrix,
    whose side is seq_len; there copies for checkpoints lie beside the model.
    """

    config: BertConfig
    ranks: int
    zero_stage: int
    optimizer: str = "adamw"
    precision: Literal["fp32", "bf16"] = "fp32"
    micro_tokens: int = 16_384
    seq_len: int = 128
    micro_batches: int = 2
    recomputes: bool = False
    is_compiled: bool = False
    is_cpu: bool = False
    masked_share: float = 0.15

    @property
    def value_bytes(self) -> int:
        """Bytes of a weight or an activation in the passes."""
        return 2 if self.precision == "bf16" else _FP32

    @property
    def whole(self) -> int:
        """Bytes of all parameters in fp32."""
        return _FP32 * num_parameters(self.config)

    @property
    def part(self) -> float:
        """Bytes in fp32 of the parameters that a rank updates."""
        return self.whole / self.ranks if self.zero_stage else self.whole

    @property
    def sums_apart(self) -> bool:
        """Whether gradients go into the sums that are held, as they come."""
        return self.precision == "bf16" and self.zero_stage == 1

    @property
    def earlier(self) -> float:
        """Bytes of the gradients that the micro-batches before have left."""
        if self.micro_batches == 1 or self.sums_apart:
            return 0.0
        return self.part if self.zero_stage >= 2 else self.whole


class Memory(NamedTuple):
    """Bytes of one rank by term: held throughout, and on top in the fullest moment of a step."""

    held: dict[str, int]
    fullest: str
    in_step: dict[str, int]

    @property
    def total(self) -> int:
        """Bytes of tensors in the fullest moment."""
        return sum(self.held.values()) + sum(self.in_step.values())


def count_memory(case: Case) -> Memory:
    """The fullest rank's memory, which is rank 0's: it writes the model's weights."""
    moments = {"loss": _loss(case), "update": _update(case), **_reduction(case)}
    fullest = max(moments, key=lambda name: sum(moments[name].values()))
    return Memory(_rounded(_held(case)), fullest, _rounded(moments[fullest]))


def _rounded(terms: dict[str, float]) -> dict[str, int]:
    return {name: round(size) for name, size in terms.items() if size}


def _held(case: Case) -> dict[str, float]:
    weights = case.value_bytes * num_parameters(case.config)
    is_apart = case.zero_stage > 0 or case.precision == "bf16"
    # A checkpoint has both means, and fp32 weights where the model's are not.
    copies = weights + (2 if case.precision == "fp32" else 3) * case.part
    return {
        "weights": weights / case.ranks if case.zero_stage == 3 else weights,
        "fp32 weights": case.part if is_apart else 0,
        "moments": 2 * case.part,
        "gradient sums": case.whole if case.sums_apart else 0,
        "checkpoint copies": copies if case.is_cpu else 0,
    }


def activation_bytes(case: Case) -> int:
    """Kept by the forward pass of one micro-batch for the backward pass, all layers together.

    Values of a layer for each token and hidden unit: its input, query, key, value and context (5),
    sum and LayerNorm after attention and the sum after feed-forward (3), feed-forward before and
    after GELU (8). Dropout keeps two masks, of a byte each on a GPU. Plain torch on a CPU keeps
    these as values, query, key and value also padded, and attention's matrix three times where it
    drops out, one more context where it does not.
    """
    config, masks = case.config, 2 * (case.config.hidden_dropout > 0)
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
    """The forward pass, with logits three times or compiled twice."""
    masked = 1.0 if case.config.is_causal else case.masked_share
    logit = case.value_bytes if case.is_compiled else _FP32  # plain passes copy logits to fp32
    logits = logit * case.config.vocab_size * masked * case.micro_tokens
    kept = {"activations": activation_bytes(case), "gradients": case.earlier}
    return {**kept, "logits": (2 if case.is_compiled else 3) * logits}


def _reduction(case: Case) -> dict[str, dict[str, float]]:
    """The end of the backward pass, and what is reduced after it.

    The embedding's gradient is last: that of the decoder, that of the lookup, and their sum, which
    becomes the gradient itself in a first micro-batch. DeepSpeed then flattens gradients beside
    themselves; under ZeRO-2 beside the bucket that they came in.
    """
    count, tied = num_parameters(case.config), case.config.vocab_size * case.config.hidden_size
    bucket = _FP32 * bucket_elements(count, tied)
    times = 3 if case.micro_batches > 1 or case.zero_stage >= 2 else 2
    gradients, buckets = (0.0 if case.sums_apart else case.whole), (0, bucket)
    if case.zero_stage >= 2:  # all gradients in one bucket are reduced at the end only
        gradients = case.earlier + (case.part if count > LARGEST_BUCKET else 0)
        buckets = (bucket, 2 * bucket)
    end = {"gradients": gradients, "buckets": buckets[0]}
    embedding = times * case.value_bytes * tied
    return {
        "end of the backward pass": end | {"gradient of the embedding": embedding},
        "reduction": {"gradients": gradients, "buckets": buckets[1]},
    }


def _update(case: Case) -> dict[str, float]:
    """DeepSpeed's flat copy beside the gradients, or LAMB's updates.

    On several ranks LAMB's guess of both means comes with them. Of Muon the largest matrix is there
    four times, and two matrices that are shared with other ranks are sent and received.
    """
    gradients = 0.0 if case.sums_apart else case.part
    if case.optimizer != "lamb":
        matrix = _FP32 * case.config.hidden_size * case.config.intermediate_size
        times = 0 if case.optimizer == "adamw" else 8 if case.zero_stage and case.ranks > 1 else 4
        flat = gradients * (case.zero_stage > 0)
        return {"gradients": gradients, "flat gradients": flat, "matrices of Muon": times * matrix}
    copies = 3 if case.zero_stage and case.ranks > 1 else 1
    return {"gradients": gradients, "updates of LAMB": copies * case.part}
