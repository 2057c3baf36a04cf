"""What is done about bad gradients, hung ranks and corrupted memory."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SafetySettings:
    """What is done about bad gradients, hung ranks and corrupted memory.

    Attributes:
        spike_factor: A step is not taken where its gradient norm is not finite or this many times
            the running median; 0 takes every finite one. Five such steps in a row send the run back
            to the checkpoint before them, without their instances.
        weights_interval: Steps between two comparisons of all ranks' weights, which find flipped
            bits; 1 finds most, at some 4 % of a small model's step; 0 never compares.
        watchdog_minutes: The longest time a step, a validation or a wait for a checkpoint may take.
            A first step may take three times as long. Then the job ends with the stacks of all
            ranks; 0 waits for ever.
    """

    spike_factor: float = 10.0
    weights_interval: int = 10
    watchdog_minutes: float = 30.0

    def __post_init__(self) -> None:
        if (factor := self.spike_factor) and factor <= 1:
            raise ValueError(f"safety.spike_factor is {factor}; it must be above 1, or 0 for none")
        for name in ("weights_interval", "watchdog_minutes"):
            if (value := getattr(self, name)) < 0:
                raise ValueError(f"safety.{name} is {value}; it must be at least 0")
