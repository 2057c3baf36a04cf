"""When a run is saved, and where to."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CheckpointSettings:
    """When the run is saved.

    Attributes:
        interval: Optimizer steps between two checkpoints; 0 saves at the ends of phases only.
        keep: How many of the newest checkpoints stay; 0 keeps all.
        url: Folder at an fsspec URL that checkpoints of this run alone are uploaded to. A run whose
            disk is lost continues from it; null keeps them in `output` only.
        skip_damaged: Whether the run goes back to the newest checkpoint that is whole. Otherwise a
            damaged one stops it.
    """

    interval: int = 1_000
    keep: int = 3
    url: str | None = None
    skip_damaged: bool = False

    def __post_init__(self) -> None:
        for name in ("interval", "keep"):
            if (value := getattr(self, name)) < 0:
                raise ValueError(f"checkpoint.{name} is {value}; it must be at least 0")
