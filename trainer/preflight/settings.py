"""Settings of `doctor` and `plan`, the commands that are run before a training."""

from dataclasses import dataclass, field
from typing import Literal

from pipeline.command_line.program import check_least
from trainer.process.gpus import GPUS
from trainer.settings import Phase, PretrainSettings


@dataclass(frozen=True, kw_only=True)
class DoctorSettings(PretrainSettings):
    """Examines every rank of a job before it trains.

    Start it as pretrain is started, with the same flags. The exit code is 1 if a rank is unfit.
    Where checkpoint.url is given, every rank writes and removes a small object there.

    Attributes:
        data: Datasets as pretrain takes them. Without any, doctor reads none, and in a plan every
            instance counts as full.
        output: The planned folder of the run, which is not made.
        phases: The phases of the training, which doctor does not look at.
    """

    data: list[str] = field(default_factory=list)
    output: str = "."
    phases: list[Phase] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class PlanSettings(DoctorSettings):
    """Says what a run will take: tokens, epochs, hours, memory by ZeRO stage, bandwidth.

    It takes every flag of `python -m trainer pretrain` too, and so the run's --config.

    Attributes:
        world_size: How many ranks train, each on a GPU or on CPUs.
        gpu: The GPU of a rank, known by its data sheet's TFLOP/s and memory. Ranks on CPUs also
            need --peak_tflops.
    """

    world_size: int = 8
    gpu: Literal[
        "v100", "a100-40gb", "a100", "l4", "l40s", "h100", "h200", "b200", "mi300x", "cpu"
    ] = "h200"

    def __post_init__(self) -> None:
        check_least(self, world_size=1)
        if self.gpu == "cpu" and self.peak_tflops is None:
            reached = "what one rank reaches in large products"
            raise ValueError(f"no data sheet is known for a CPU; give --peak_tflops, {reached}")

    @property
    def tflops(self) -> float:
        """TFLOP/s that the user gave, or those of the GPU's data sheet."""
        return self.peak_tflops or GPUS[self.gpu].tflops
