"""Settings of the commands around training: every default, meaning and unit. Imports the stdlib."""

from dataclasses import dataclass, field
from typing import Literal

from trainer.settings import PretrainSettings


@dataclass(frozen=True)
class ExportSettings:
    """Writes the newest checkpoint of a run as a folder that Hugging Face transformers opens.

    Attributes:
        run: The run's folder.
        output: Folder to write, or an fsspec URL; an earlier export there is replaced, anything else refused.
    """

    run: str
    output: str


@dataclass(frozen=True)
class FillMaskSettings:
    """Prints what an exported model would put in the place of [MASK].

    Attributes:
        model: Folder written by export, or by transformers.
        text: Text with one [MASK] or several.
        top_k: Candidates for each [MASK].
    """

    model: str
    text: str
    top_k: int = 5


@dataclass(frozen=True, kw_only=True)
class PlanSettings(PretrainSettings):
    """Says what a run will take before it starts: tokens, epochs, hours, memory by ZeRO stage, bandwidth.

    Takes every setting of `pretrain` besides its own, so that the run's --config can be given as it is.

    Attributes:
        data: The datasets; without one every instance counts as full.
        output: Not looked at.
        gpus: How many.
        gpu: Which, for the data sheet's TFLOP/s and memory.
        peak_tflops: TFLOP/s of one GPU that mfu is a share of; null for the data sheet's dense bf16.
        mfu: Share of the peak that training reaches, of real tokens' mathematics only.
        steps: As for pretrain, and so are all others: see `python -m trainer pretrain --help`.
    """

    data: list[str] = field(default_factory=list)
    output: str = ""
    gpus: int = 8
    gpu: Literal["v100", "a100-40gb", "a100", "l4", "l40s", "h100", "h200", "b200", "mi300x"] = "h200"
    peak_tflops: float | None = None
    mfu: float = 0.4


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
        buffer_bytes: Memory of one rank for blocks read ahead of need.
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
    buffer_bytes: int = 512 * 2**20
    cache_dir: str | None = None
    cache_bytes: int = 64 * 2**30
    storage_options: str | None = None
