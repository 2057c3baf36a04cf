"""How much memory a rank takes throughout, and in the fullest moment of a step.

With P parameters of 4 bytes each in fp32, N ranks, and V vocabulary by h hidden of the tied
embedding, a rank holds

    weights            P; in bf16 half of it
    fp32 weights       P / N: what ZeRO-1 and 2 update, apart from the model also where that is in
    fp32 moments            2 P, or 2 P / N under ZeRO: both running means gradient sums      P: in
    bf16 under ZeRO-1 all of them, in fp32 checkpoint copies  on the host: what rank 0 writes of a
    checkpoint, made before the first step and kept

and one of these on top, whichever is most (`_moments`):

    loss        activations, logits three times (compiled: themselves and their gradient),
                gradients of the micro-batches before
    head        the same with logits once, and the tied embedding's gradient
    end of the backward pass
                all gradients, or under ZeRO-2 this rank's part and a bucket; the embedding's three
                times
    reduction   gradients and a bucket, or under ZeRO-2 this rank's part and two
    update      this rank's gradients twice, as DeepSpeed flattens them; or once, and LAMB's updates

Bytes of tensors are exact but for alignment (tests/trainer/test_memory.py counts them). On a CPU a
process takes more: the interpreter and its libraries, blocks of the stream, and what the C library
keeps of freed tensors. On a GPU the number is the allocator's own count; CUDA itself and pieces
that the allocator cannot use come on top.
"""

from dataclasses import dataclass, field
from typing import Literal

from trainer.engine.deepspeed_config import LARGEST_BUCKET, bucket_elements
from trainer.model.config import BertConfig
from trainer.model.flops import num_parameters
from trainer.process.allocator import MMAP_BYTES

LIBRARIES_BYTES = 980_000_000
"""The resident memory of a rank on a CPU that trains a model of next to nothing.

It was measured with Python 3.11, torch 2.13 and DeepSpeed 0.19.8.
"""
SCATTERED_SHARE = 0.5
"""What glibc's heap holds besides live tensors, as a share of them.

It was fitted to BERT-BASE (scripts/bench/memory.py).
"""
MASKED_SHARE = 0.15
_FP32 = 4


@dataclass(frozen=True)
class Case:
    """What the memory of a rank depends on.

    Attributes:
        config: Sizes of the model.
        ranks: How many ranks the run has.
        zero_stage: The stage of ZeRO, 0 to 3.
        optimizer: The optimizer, adamw or lamb.
        precision: The precision, fp32 or bf16.
        micro_tokens: The most tokens of a micro-batch.
        seq_len: Sequence length of the longest phase; attention on a CPU keeps its matrix.
        micro_batches: Micro-batches of a step on one rank; gradients of the first are held while
            the last is made.
        recomputes: Whether activations are checkpointed.
        is_compiled: Whether the loss is compiled, which makes no copy of the logits in fp32.
        is_cpu: Whether the model is on the CPU, beside the copies for checkpoints.
        stream_bytes: Bytes of blocks that are read ahead.
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
    stream_bytes: int = 0

    @property
    def value_bytes(self) -> int:
        """Bytes of a weight or an activation in the passes."""
        return 2 if self.precision == "bf16" else _FP32

    @property
    def part(self) -> float:
        """Share of the parameters that a rank updates."""
        return 1 / self.ranks if self.zero_stage else 1.0


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank, by term.

    Attributes:
        held: Throughout.
        moments: What comes on top, for every moment that may be the fullest.
        process: Besides tensors, on a CPU.
    """

    held: dict[str, int]
    moments: dict[str, dict[str, int]]
    process: dict[str, int] = field(default_factory=dict)

    @property
    def fullest(self) -> str:
        """The moment that takes most."""
        return max(self.moments, key=lambda name: sum(self.moments[name].values()))

    @property
    def tensors(self) -> int:
        """Bytes of tensors in the fullest moment."""
        return sum(self.held.values()) + sum(self.moments[self.fullest].values())

    @property
    def total(self) -> int:
        """Bytes of the rank: of its GPU, or of its process on a CPU."""
        return self.tensors + sum(self.process.values())


def count_memory(case: Case) -> Memory:
    """The fullest rank's memory, which is rank 0's: it writes the model's weights."""
    held, moments = _held(case), _moments(case)
    if not case.is_cpu:
        return Memory(held, moments)
    fullest = max(sum(terms.values()) for terms in moments.values())
    kept = _kept_by_the_c_library(case, moments) - fullest
    process = {"libraries": LIBRARIES_BYTES, "stream": case.stream_bytes, "kept freed": kept}
    return Memory(held, moments, {name: size for name, size in process.items() if size})


def _kept_by_the_c_library(case: Case, moments: dict[str, dict[str, int]]) -> int:
    """What the process takes for all moments together, as the heap keeps what was freed in it.

    Pieces from `trainer.process.allocator.MMAP_BYTES` on come from the system and go back to it.
    Smaller ones lie in the heap, which is as large as at its fullest, and by SCATTERED_SHARE
    larger, as what is freed leaves holes.
    """
    heaps, mapped = [], []
    for terms in moments.values():
        heap = sum(size * _heap_share(case, term) for term, size in terms.items())
        heaps.append(heap)
        mapped.append(sum(terms.values()) - heap)
    return round((1 + SCATTERED_SHARE) * max(heaps) + max(mapped))


def _heap_share(case: Case, term: str) -> float:
    """Share of a term that is in pieces too small to be the system's."""
    config, count = case.config, num_parameters(case.config)
    embedding = config.vocab_size * config.hidden_size
    values = case.micro_tokens * config.hidden_size * case.value_bytes
    is_flat = term in ("buckets", "flat gradients") or (
        term == "gradients" and case.zero_stage >= 2
    )
    if is_flat:
        return float(_FP32 * count * case.part < MMAP_BYTES)
    if term == "activations":  # of some 21 values 8 are in pieces four times as wide
        return (13 * (values < MMAP_BYTES) + 8 * (4 * values < MMAP_BYTES)) / 21
    if term == "logits":
        return float(
            _logit_bytes(case) * config.vocab_size * MASKED_SHARE * case.micro_tokens < MMAP_BYTES
        )
    is_small = _FP32 * embedding < MMAP_BYTES
    if term == "gradient of the embedding":
        return float(is_small)
    return 1.0 if is_small else 1 - embedding / count


def activation_bytes(case: Case) -> int:
    """Kept by the forward pass of one micro-batch for the backward pass, all layers together.

    Values of a layer for each token and hidden unit: its input, query, key, value and context (5),
    sum and LayerNorm after attention and the sum after feed-forward (3), feed-forward before and
    after GELU (8). Dropout keeps two masks, of a byte each on a GPU. Plain torch on a CPU keeps
    these as values, query, key and value also padded, and attention's matrix three times where it
    drops out, 3 * heads * seq_len / hidden, or one more context where it does not.
    """
    config, value = case.config, case.value_bytes
    if case.is_cpu:
        matrix = (
            3 * config.num_heads * case.seq_len / config.hidden_size
            if config.attention_dropout
            else 1
        )
        a_unit = value * (16 + 3 + 2 * (config.hidden_dropout > 0) + matrix)
    else:
        a_unit = value * 16 + 2 * (config.hidden_dropout > 0)
    a_layer = a_unit * config.hidden_size * case.micro_tokens
    inputs = value * config.hidden_size * case.micro_tokens
    if case.recomputes:  # inputs of all layers, and one layer's insides at a time
        return round(a_layer + config.num_layers * inputs)
    return round(config.num_layers * a_layer + 4 * inputs)


def _held(case: Case) -> dict[str, int]:
    count = num_parameters(case.config)
    is_apart = case.zero_stage > 0 or case.precision == "bf16"
    weights = case.value_bytes * count
    found = {
        "weights": weights / case.ranks if case.zero_stage == 3 else weights,
        "fp32 weights": _FP32 * count * case.part if is_apart else 0,
        "moments": 2 * _FP32 * count * case.part,
        "gradient sums": _FP32 * count if case.precision == "bf16" and case.zero_stage == 1 else 0,
        "checkpoint copies": _copied_bytes(case) if case.is_cpu else 0,
    }
    return {name: round(size) for name, size in found.items() if size}


def _copied_bytes(case: Case) -> float:
    """The model's weights and both means, and fp32 weights where the model's are not."""
    count = num_parameters(case.config)
    pieces = 2 if case.precision == "fp32" else 3
    return case.value_bytes * count + pieces * _FP32 * count * case.part


def _moments(case: Case) -> dict[str, dict[str, int]]:
    """What comes on top of what is held; see the module's docstring."""
    config = case.config
    masked = 1.0 if config.is_causal else MASKED_SHARE
    logits = _logit_bytes(case) * config.vocab_size * masked * case.micro_tokens
    tied = case.value_bytes * config.vocab_size * config.hidden_size
    passed = {"activations": activation_bytes(case), "gradients": _earlier_bytes(case)}
    moments = {
        "loss": {**passed, "logits": (2 if case.is_compiled else 3) * logits},
        "head": {**passed, "logits": logits, "gradient of the embedding": tied},
        "end of the backward pass": _end_of_backward(case, tied),
        "reduction": _reduction(case),
        "update": _update(case),
    }
    return {
        name: {term: round(size) for term, size in terms.items() if size}
        for name, terms in moments.items()
    }


def _logit_bytes(case: Case) -> int:
    """Bytes of a logit in the loss: plain passes copy logits to fp32."""
    return case.value_bytes if case.is_compiled else _FP32


def _earlier_bytes(case: Case) -> float:
    """Gradients of the micro-batches before the last one; under ZeRO-2 this rank's part of them."""
    if case.micro_batches == 1 or _is_summed_apart(case):
        return 0.0
    return _FP32 * num_parameters(case.config) * (case.part if case.zero_stage >= 2 else 1)


def _is_summed_apart(case: Case) -> bool:
    """Whether gradients go into the sums that are held, as they come."""
    return case.precision == "bf16" and case.zero_stage == 1


def _end_of_backward(case: Case, tied: float) -> dict[str, float]:
    """The embedding's gradient is last: that of the decoder, that of the lookup, and their sum."""
    if case.zero_stage < 2:
        held = 0.0 if _is_summed_apart(case) else _FP32 * num_parameters(case.config)
        # The first micro-batch's sum becomes the gradient itself.
        return {
            "gradients": held,
            "gradient of the embedding": (3 if case.micro_batches > 1 else 2) * tied,
        }
    earlier, part = _earlier_bytes(case), _FP32 * num_parameters(case.config) * case.part
    bucket = _bucket_bytes(case)
    has_one = (
        num_parameters(case.config) <= LARGEST_BUCKET
    )  # then nothing is reduced before the end
    return {
        "gradients": earlier + (0 if has_one else part),
        "buckets": bucket,
        "gradient of the embedding": 3 * tied,
    }


def _reduction(case: Case) -> dict[str, float]:
    """Flat gradients beside the gradients, or under ZeRO-2 beside the bucket they came in."""
    bucket, count = _bucket_bytes(case), num_parameters(case.config)
    if case.zero_stage < 2:
        return {"gradients": 0.0 if _is_summed_apart(case) else _FP32 * count, "buckets": bucket}
    part = _FP32 * count * case.part
    return {
        "gradients": _earlier_bytes(case) + (part if count > LARGEST_BUCKET else 0),
        "buckets": 2 * bucket,
    }


def _bucket_bytes(case: Case) -> float:
    count = num_parameters(case.config)
    return _FP32 * bucket_elements(count, case.config.vocab_size * case.config.hidden_size)


def _update(case: Case) -> dict[str, float]:
    """DeepSpeed's flat copy beside the gradients, or LAMB's updates.

    On several ranks LAMB's guess of both means comes with them.
    """
    part = _FP32 * num_parameters(case.config) * case.part
    gradients = 0.0 if _is_summed_apart(case) else part
    if case.optimizer != "lamb":
        return {"gradients": gradients, "flat gradients": gradients * (case.zero_stage > 0)}
    copies = 3 if case.zero_stage and case.ranks > 1 else 1
    return {"gradients": gradients, "updates of LAMB": copies * part}
