"""Settings of the commands around training: every default, meaning and unit."""

from dataclasses import dataclass, field
from typing import Literal

from pipeline.command_line.program import check_least
from trainer.settings import Phase, PretrainSettings
from trainer.stream.read_settings import ReadingSettings


@dataclass(frozen=True)
class ExportSettings:
    """Writes a checkpoint of a run as a folder that Hugging Face transformers, or Google's program, opens.

    Attributes:
        run: The run's folder, or the URL that its checkpoints were uploaded to (--checkpoint.url); the newest one is
            taken, of RUN@STEP that of this step.
        output: Folder to write, or an fsspec URL; an earlier export there is replaced, anything else refused.
        output_format: "huggingface", or "google" for the TensorFlow checkpoint of google-research/bert.
        storage_options: Options of the run's filesystem as JSON or @FILE, besides its environment variables.
    """

    run: str
    output: str
    output_format: Literal["huggingface", "google"] = "huggingface"
    storage_options: str | None = None


@dataclass(frozen=True)
class FillMaskSettings:
    """Prints what a trained model would put in the place of [MASK].

    Attributes:
        model: A run, RUN@STEP for an earlier checkpoint, or a folder written by export or by transformers; also URLs.
        texts: Texts with one [MASK] or several each.
        top_k: Candidates for each [MASK].
    """

    model: str
    texts: list[str]
    top_k: int = 5


@dataclass(frozen=True)
class NextSentenceSettings:
    """Prints how probable it is, by a trained model, that the second text follows the first.

    Attributes:
        first: Text A.
        second: Text B.
        model: A run, RUN@STEP for an earlier checkpoint, or a folder written by export or by transformers; also URLs.
    """

    first: str
    second: str
    model: str


@dataclass(frozen=True)
class EvaluateSettings:
    """Measures how well a model predicts a dataset's instances: losses, accuracies, and by the token's frequency.

    Attributes:
        model: A run, RUN@STEP for an earlier checkpoint, or a folder written by export or by transformers; also URLs.
        data: A dataset made by `python -m pipeline build`, with the model's vocabulary.
        split: train or validation; of its first pass.
        seq_len: Length of the instances; null for the shortest there is.
        num_instances: How many instances of the split, from its first on; 0 takes all.
        micro_tokens: Most tokens of one forward pass.
        device: auto takes a GPU where there is one.
        output: File, or URL of one, for the same numbers as JSON; null for none.
        storage_options: Options of the data's filesystem as JSON or @FILE, besides its environment variables.
    """

    model: str
    data: str
    split: Literal["train", "validation"] = "validation"
    seq_len: int | None = None
    num_instances: int = 0
    micro_tokens: int = 8_192
    device: Literal["auto", "cpu", "cuda"] = "auto"
    output: str | None = None
    storage_options: str | None = None

    def __post_init__(self) -> None:
        check_least(self, num_instances=0, micro_tokens=1)


@dataclass(frozen=True, kw_only=True)
class DoctorSettings(PretrainSettings):
    """Examines every rank of a job before it trains: start it as pretrain is started. Exit code 1 if one is unfit.

    Takes every setting of `pretrain` besides its own, so that `doctor` can stand in the place of `pretrain`. Where
    checkpoint.url is given, every rank writes and removes a small object there, and every node may have a run folder
    of its own.

    Attributes:
        data: Datasets as pretrain takes them, to be read from on every rank; none are read where it is left out.
        output: The run's folder that is planned, to be looked at but not made.
        phases: Not looked at.
        read_mb: What every rank reads of the data, MB, within 10 seconds.
        min_free_gb: Space wanted for the output, GB; `trainer plan` says what checkpoints take.
    """

    data: list[str] = field(default_factory=list)
    output: str = "."
    phases: list[Phase] = field(default_factory=list)
    read_mb: int = 64
    min_free_gb: float = 10.0

    def __post_init__(self) -> None:
        check_least(self, read_mb=1, min_free_gb=0)


@dataclass(frozen=True)
class ReportSettings:
    """Writes the curves of one run, or of several over one another, as a page of its own.

    Attributes:
        runs: Folders of runs; the curves of each have a colour.
        output: The page; report.html in the first run's folder where it is left out.
    """

    runs: list[str]
    output: str | None = None


@dataclass(frozen=True, kw_only=True)
class PlanSettings(PretrainSettings):
    """Says what a run will take before it starts: tokens, epochs, hours, memory by ZeRO stage, bandwidth.

    Takes every setting of `pretrain` besides its own, so that the run's --config can be given as it is.

    Attributes:
        data: The datasets; without one every instance counts as full.
        output: Not looked at.
        world_size: How many GPUs, or ranks on CPUs.
        gpu: Which GPU, for its data sheet's TFLOP/s, memory and bandwidths; or cpu, which needs peak_tflops.
        mfu: Share of the peak that training reaches at best, counting the mathematics of real tokens only; the slow
            end of the times has half of it.
        epochs: Passes over the data, of all phases together, in place of the phases' steps, whose proportions stay.
        steps: As for pretrain, and so are all others: see `python -m trainer pretrain --help`.
    """

    data: list[str] = field(default_factory=list)
    output: str = ""
    world_size: int = 8
    gpu: Literal["v100", "a100-40gb", "a100", "l4", "l40s", "h100", "h200", "b200", "mi300x", "cpu"] = "h200"
    mfu: float = 0.4
    epochs: float | None = None


@dataclass(frozen=True)
class StreamSettings:
    """Reads what every rank would read of the first steps, without a model: a dry run, and a benchmark of the store.

    Attributes:
        data: Datasets as pretrain takes them: [NAME=]URL[:WEIGHT] each.
        seq_len: Length of the instances; null for the shortest there is.
        world_size: Ranks to stand in for, one after another.
        global_batch: Instances of a step over all ranks.
        micro_tokens: Most real tokens of one forward pass on one rank.
        steps: How many; 0 for one epoch of the first dataset.
        seed: Of the order of shards.
        reading: How data is read from where it lies, as pretrain's.
        cache_dir: Folder on a disk of this machine that keeps what was read, as pretrain's; null for none.
        cache_bytes: What that folder may hold.
        storage_options: Options of the data's filesystem as JSON or @FILE, besides its environment variables.
    """

    data: list[str]
    seq_len: int | None = None
    world_size: int = 1
    global_batch: int = 256
    micro_tokens: int = 16_384
    steps: int = 20
    seed: int = 0
    reading: ReadingSettings = field(default_factory=ReadingSettings)
    cache_dir: str | None = None
    cache_bytes: int = 64 * 2**30
    storage_options: str | None = None

    def __post_init__(self) -> None:
        check_least(self, world_size=1, global_batch=1, micro_tokens=1, steps=0)
