"""Settings of what keeps work from being lost: checkpoints, and guards. Stdlib only."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CheckpointSettings:
    """When the run is saved.

    Attributes:
        interval: Optimizer steps between two checkpoints; 0 saves at the end of each phase only.
        keep: How many of the newest checkpoints stay; 0 keeps all.
        keep_every: Checkpoints of steps that are multiples of this stay as well; 0 keeps none
            besides the newest.
        url: Folder at an fsspec URL, such as s3://bucket/run, that checkpoints of this run alone
            are uploaded to while training goes on. A run whose disk is lost continues from it; null
            keeps them in `output` only.
        skip_damaged: Whether the run goes back to the newest checkpoint that is whole. Otherwise a
            damaged one stops it.
    """

    interval: int = 1_000
    keep: int = 3
    keep_every: int = 0
    url: str | None = None
    skip_damaged: bool = False

    def __post_init__(self) -> None:
        for name in ("interval", "keep", "keep_every"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"checkpoint.{name} is {getattr(self, name)}; it must be at least 0"
                )


@dataclass(frozen=True)
class SafetySettings:
    """What is done about bad gradients, hung ranks and corrupted memory.

    Attributes:
        spike_factor: A step is not taken, and weights and moments stay, where its gradient norm is
            not finite or this many times the running median; 0 takes every finite one. Five such
            steps in a row send the run back to the checkpoint before them, without their instances.
        weights_interval: Steps between two comparisons of all ranks' weights, which find flipped
            bits; 1 also finds those that the next update would heal or spread, at some 4 % of a
            small model's step; 0 never compares.
        watchdog_minutes: The longest time a step, a validation or a wait for a checkpoint may take.
            Then the job ends with the stacks of all ranks. The first step of a launch and of a
            phase may take three times as long, and waiting for a build is not counted; 0 waits for
            ever.
    """

    spike_factor: float = 10.0
    weights_interval: int = 10
    watchdog_minutes: float = 30.0

    def __post_init__(self) -> None:
        if self.spike_factor and self.spike_factor <= 1:
            raise ValueError(
                f"safety.spike_factor is {self.spike_factor}; it must be above 1, or 0 for none"
            )
        for name in ("weights_interval", "watchdog_minutes"):
            if getattr(self, name) < 0:
                raise ValueError(f"safety.{name} is {getattr(self, name)}; it must be at least 0")
