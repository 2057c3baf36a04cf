"""Settings of the commands that look before a run begins."""

from dataclasses import dataclass, field
from typing import Literal

from trainer.settings import Phase, PretrainSettings


@dataclass(frozen=True, kw_only=True)
class PreflightSettings(PretrainSettings):
    """A run that is looked at before it begins.

    Attributes:
        data: Datasets as pretrain takes them. Without any, doctor reads none, and in a plan every
            instance counts as full.
        output: The planned folder of the run, which is not made.
    """

    data: list[str] = field(default_factory=list)
    output: str = "."


@dataclass(frozen=True, kw_only=True)
class DoctorSettings(PreflightSettings):
    """Examines every rank of a job before it trains.

    Start it as pretrain is started. The exit code is 1 if a rank is unfit.

    It takes every flag of `python -m trainer pretrain` too, so that `doctor` can stand in the place
    of `pretrain`. Where checkpoint.url is given, every rank writes and removes a small object
    there.

    Attributes:
        phases: The phases of the training, which are not looked at.
    """

    phases: list[Phase] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class PlanSettings(PreflightSettings):
    """Says what a run will take: tokens, epochs, hours, memory by ZeRO stage, bandwidth.

    It takes every flag of `python -m trainer pretrain` too, so that the run's --config can be given
    as it is.

    Attributes:
        world_size: How many ranks train, each on a GPU or on CPUs.
        gpu: The GPU of a rank, known by its data sheet's TFLOP/s and memory. Ranks on CPUs also
            need --peak_tflops.
    """

    world_size: int = 8
    gpu: Literal[
        "v100", "a100-40gb", "a100", "l4", "l40s", "h100", "h200", "b200", "mi300x", "cpu"
    ] = "h200"
