"""Settings of `doctor` and `plan`, the commands that are run before a training."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from pipeline.command_line.program import check_least
from trainer.preflight.communication import parse_link
from trainer.process.gpus import GPUS
from trainer.process.precision import Choice, Device, choose_precision
from trainer.settings import Phase, PretrainSettings


@dataclass(frozen=True, kw_only=True)
class DoctorSettings(PretrainSettings):
    """Examines every rank of a job before it trains.

    Start it as pretrain is started, with the same flags. The exit code is 1 if a rank is unfit, or
    if pretrain would refuse the settings: they do not fit the data, the number of ranks, or the
    model or run that the training begins with.
    If checkpoint.url is given, every rank writes and removes a small object there.

    Attributes:
        data: Datasets as pretrain takes them. If none is given, doctor reads none, and plan takes
            every instance to have the full length.
        output: The planned folder of the run, which is not made.
        phases: The phases of the training, a list in the --config file. If none is given, doctor
            does not check lengths and batches.
    """

    data: list[str] = field(default_factory=list)
    output: str = "."
    phases: list[Phase] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class PlanSettings(DoctorSettings):
    """Says what a run will take: tokens, epochs, hours, communication, memory, bandwidth.

    It takes every flag of `python -m trainer pretrain` too, and so the run's --config.

    Attributes:
        world_size: How many ranks train, each on a GPU or on CPUs.
        gpu: The GPU of a rank, known by its data sheet: TFLOP/s in bf16 and fp32, memory, and the
            link to the other GPUs of its node. Ranks on CPUs also need --peak_tflops.
        node_size: Ranks of a full node; a run with more ranks than that must fill whole nodes.
        link: The link between nodes: ndr is InfiniBand of 400 Gbit/s for every GPU; 400gbe and
            100gbe are Ethernet with one port for a node; nvlink joins all GPUs as if they were in
            one node. 4x100gbe means four ports for a node, and 25gbit or 100mbit is a rate of your
            own.
        compare: Numbers of ranks, such as 1 8 64, for which a table shows the hours of the run with
            each link between nodes.
    """

    world_size: int = 8
    gpu: Literal[
        "v100", "a100-40gb", "a100", "l4", "l40s", "h100", "h200", "b200", "mi300x", "cpu"
    ] = "h200"
    node_size: int = 8
    link: str = "ndr"
    compare: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_least(self, world_size=1, node_size=1)
        for ranks in self.compare:
            if ranks < 1:
                raise ValueError(f"compare has {ranks}; numbers of ranks are at least 1")
        parse_link(self.link)
        if self.gpu == "cpu" and self.peak_tflops is None:
            reached = "what one rank reaches in large products"
            raise ValueError(f"no data sheet is known for a CPU; give --peak_tflops, {reached}")
        if not self.tflops:
            raise ValueError(f"{self.gpu} has no bf16; give --precision fp32")

    @property
    def tflops(self) -> float:
        """TFLOP/s of a rank: `peak_tflops` if it is given, else those of the GPU's data sheet.

        The data sheet's number is that for the run's precision.
        """
        return self.peak_tflops or GPUS[self.gpu].peak_tflops(self.choice.precision)

    @cached_property
    def bucket_size(self) -> int | None:
        """`reduce_bucket_size` of the ds_config.json, in elements; None if it does not say it."""
        from trainer.engine.deepspeed_file import passed_to_deepspeed

        zero = passed_to_deepspeed(self.deepspeed).get("zero_optimization", {})
        size: int | None = zero.get("reduce_bucket_size")
        return size

    @property
    def choice(self) -> Choice:
        """The precision of the run on this GPU, and whether its model is compiled."""
        has_bf16 = GPUS[self.gpu].bf16_tflops > 0
        device = Device(self.gpu, has_bf16, can_compile=has_bf16)
        return choose_precision(device, self.zero_stage, self.precision, self.compile)
