"""How long an optimizer step takes on GPUs, from the fastest it can be to the slowest it should be.

Mathematics alone promises too much where a model or a batch is small: a GPU then waits for the
host, which starts its kernels one by one, and for the other ranks. With n micro-batches on a rank,
L layers, P parameters and N ranks:

    step     = n * max(mathematics, launches) + optimizer + exchange + once
    mathematics = floating point operations of a micro-batch / (TFLOP/s of the data sheet * mfu)
    launches    = (80 L + 108) * seconds a kernel
    optimizer   = bytes it moves of what the rank updates / bandwidth of the memory
    exchange    = latency of each collective * (1 + log2 N) + bytes of rings, 2 (N - 1) / N a
    gradient, over the links once        = what the host does for a step: data, counts, losses read
    back, the log

80 and 108 are counted: the operations of one micro-batch in bf16 under ZeRO-1, attention being one
of them, for a layer and for what is around the layers (tests/trainer/test_step_time.py). `compile`
leaves out some 40 %. CUDA graphs would start a pass at once; the trainer has none, as lengths
change from micro-batch to micro-batch. Every other constant is taken from data sheets or assumed,
once for the fast end and once for the slow one: no GPU has measured them yet.
"""

import math
from dataclasses import dataclass

from trainer.engine.deepspeed_config import LARGEST_BUCKET
from trainer.process.gpus import Gpu

LAYER_LAUNCHES, OUTER_LAUNCHES, COMPILED_SHARE = 80, 108, 0.6
RECOMPUTED = 4 / 3
"""Mathematics with activation checkpointing, and a second forward pass, over those without."""
UPDATE_BYTES = {"adamw": 36, "lamb": 65}
"""Moved for one parameter, with its norm (scripts/bench/results/README.md)."""
GPUS_A_NODE = 8


@dataclass(frozen=True)
class Assumed:
    """What data sheets do not say, at one end of the range: seconds, shares, GB/s between nodes.

    A hop is the latency of a collective, for itself and for every doubling of the ranks.
    """

    mfu_share: float
    launch_seconds: float
    hop_seconds: float
    link_share: float
    network_gb_s: float
    memory_share: float
    once_seconds: float


FAST = Assumed(1.0, 3e-6, 10e-6, 0.8, 50.0, 0.9, 1e-3)
SLOW = Assumed(0.5, 8e-6, 50e-6, 0.2, 12.5, 0.5, 5e-3)


@dataclass(frozen=True)
class Work:
    """What a step asks of one rank: operations of its share of the batch, and what they depend on."""

    flops: float
    micro_batches: int
    num_layers: int
    num_parameters: int
    ranks: int
    mfu: float
    optimizer: str = "adamw"
    zero_stage: int = 1
    value_bytes: int = 2
    recomputes: bool = False
    is_compiled: bool = False


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step at one end of the range; the parts are those of the formula above."""

    mathematics: float
    launches: float
    optimizer: float
    exchange: float
    once: float

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return max(self.mathematics, self.launches) + self.optimizer + self.exchange + self.once

    @property
    def idle_share(self) -> float:
        """Share of the step in which the GPU does no mathematics."""
        return 1 - self.mathematics / self.total


def step_time(work: Work, gpu: Gpu, assumed: Assumed) -> StepTime:
    """Seconds of one step of a rank at one end of the range."""
    launches = (
        LAYER_LAUNCHES * work.num_layers * (RECOMPUTED if work.recomputes else 1) + OUTER_LAUNCHES
    )
    launches *= work.micro_batches * (COMPILED_SHARE if work.is_compiled else 1)
    flops = work.flops * (RECOMPUTED if work.recomputes else 1)
    updated = work.num_parameters / (work.ranks if work.zero_stage else 1)
    return StepTime(
        mathematics=flops / (gpu.tflops * 1e12 * work.mfu * assumed.mfu_share),
        launches=launches * assumed.launch_seconds,
        optimizer=updated
        * UPDATE_BYTES[work.optimizer]
        / (gpu.memory_tb_s * 1e12 * assumed.memory_share),
        exchange=_exchange_seconds(work, gpu, assumed),
        once=assumed.once_seconds,
    )


def _exchange_seconds(work: Work, gpu: Gpu, assumed: Assumed) -> float:
    """Seconds for gradients in fp32, for the weights, and for two small sums.

    Gradients are exchanged once a step or, from ZeRO-2 on, once a micro-batch.
    """
    if work.ranks == 1:
        return 0.0
    reductions = work.micro_batches if work.zero_stage >= 2 else 1
    collectives = reductions * math.ceil(work.num_parameters / LARGEST_BUCKET) + 3
    latency = collectives * assumed.hop_seconds * (1 + math.log2(work.ranks))
    gathers = {0: 0, 1: 1, 2: 1, 3: 2 * work.micro_batches}[work.zero_stage]
    ring = (work.ranks - 1) / work.ranks * work.num_parameters
    size = ring * (2 * 4 * reductions + work.value_bytes * gathers)
    rate = gpu.link_gb_s * assumed.link_share if work.ranks <= GPUS_A_NODE else assumed.network_gb_s
    return latency + size / (rate * 1e9)
