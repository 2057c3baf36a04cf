"""Settings of the commands that look before a run begins."""

from dataclasses import dataclass, field
from typing import Literal

from pipeline.command_line.program import check_least
from trainer.settings import Phase, PretrainSettings
from trainer.stream.read_settings import ReadingSettings


@dataclass(frozen=True, kw_only=True)
class DoctorSettings(PretrainSettings):
    """Examines every rank of a job before it trains.

    Start it as pretrain is started. The exit code is 1 if a rank is unfit.

    It takes every flag of `python -m trainer pretrain` too, so that `doctor` can stand in the place
    of `pretrain`. Where checkpoint.url is given, every rank writes and removes a small object
    there.

    Attributes:
        data: Datasets as pretrain takes them, to be read from on every rank. Without any, none is
            read.
        output: The planned folder of the run, which is looked at but not made.
        phases: The phases of the training, which are not looked at.
    """

    data: list[str] = field(default_factory=list)
    output: str = "."
    phases: list[Phase] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class PlanSettings(PretrainSettings):
    """Says what a run will take: tokens, epochs, hours, memory by ZeRO stage, bandwidth.

    It takes every flag of `python -m trainer pretrain` too, so that the run's --config can be given
    as it is.

    Attributes:
        data: Datasets as pretrain takes them. Without any, every instance counts as full.
        output: The run's folder, which is not looked at.
        world_size: How many ranks train, each on a GPU or on CPUs.
        gpu: The GPU of a rank, known by its data sheet's TFLOP/s, memory and bandwidths. Ranks on
            CPUs also need --peak_tflops.
        mfu: Share of the peak that training reaches at best, counting the mathematics of real
            tokens only. The slow end of the times has half of it.
        epochs: Passes over the data, of all phases together. The phases' steps then only say their
            proportions; null takes the steps.
    """

    data: list[str] = field(default_factory=list)
    output: str = ""
    world_size: int = 8
    gpu: Literal[
        "v100", "a100-40gb", "a100", "l4", "l40s", "h100", "h200", "b200", "mi300x", "cpu"
    ] = "h200"
    mfu: float = 0.4
    epochs: float | None = None


@dataclass(frozen=True)
class StreamSettings:
    """Reads what every rank would read of the first steps, without a model.

    It is a dry run of the data and a benchmark of the store.

    Data:
        data: Datasets as pretrain takes them, each as [NAME=]URL[:WEIGHT].
        seq_len: Sequence length of the instances; null means the shortest there is.
        cache_dir: Folder on a disk of this machine that keeps what was read, as pretrain's; null
            keeps nothing.
        cache_bytes: The most bytes that the cache folder holds.
        storage_options: Options of the data's filesystem, as JSON or @FILE. Its environment
            variables count too.
        reading: How data is read from where it lies, as pretrain's.

    Training to stand in for:
        world_size: How many ranks are stood in for, one after another.
        global_batch: Instances of one optimizer step, over all ranks.
        steps: How many optimizer steps are read; 0 reads one epoch of the first dataset.
        seed: Random seed of the order of instances.
        plan: Whether the requests of all ranks are only counted, without reading a block: at the
            start, in the middle and at the end of an epoch, and where a node is lost.
        step_seconds: Seconds that one optimizer step takes, for the rates of the plan.
    """

    data: list[str]
    seq_len: int | None = None
    world_size: int = 1
    global_batch: int = 256
    steps: int = 20
    seed: int = 0
    plan: bool = False
    step_seconds: float = 1.0
    reading: ReadingSettings = field(default_factory=ReadingSettings)
    cache_dir: str | None = None
    cache_bytes: int = 64 * 2**30
    storage_options: str | None = None

    def __post_init__(self) -> None:
        check_least(self, world_size=1, global_batch=1, steps=0)
        if not self.step_seconds > 0:
            raise ValueError(f"step_seconds is {self.step_seconds}; it must be above 0")
