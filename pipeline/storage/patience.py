"""Waiting for something that another program makes, as long as that goes on."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

FIRST_PAUSE_SECONDS = 0.25
MAX_PAUSE_SECONDS = 30.0

Found = TypeVar("Found")


@dataclass(frozen=True)
class Patience:
    """How long to wait for a build.

    Attributes:
        limit_seconds: Without any new file of the dataset, until waiting ends with an error.
        say: Takes a line for people.
        stop: Ends the waiting early.
    """

    limit_seconds: float = 3600.0
    say: Callable[[str], object] = field(default=lambda _: None)
    stop: threading.Event = field(default_factory=threading.Event)

    def wait(
        self, look: Callable[[], Found | None], what: str, count_files: Callable[[], int]
    ) -> Found:
        """Looks until something is found, at growing intervals.

        Args:
            look: Returns it, or None as long as it is not there.
            what: Is waited for, for people.
            count_files: A number that changes while the build goes on.

        Raises:
            FileNotFoundError: Nothing moved for limit_seconds, or somebody stopped the waiting.
        """
        if (found := look()) is not None:
            return found
        self.say(f"waiting for {what}")
        began = moved = time.monotonic()
        num_files, pause = count_files(), FIRST_PAUSE_SECONDS
        while time.monotonic() - moved < self.limit_seconds:
            if self.stop.wait(min(pause, self.limit_seconds)):
                raise FileNotFoundError(f"stopped while waiting for {what}")
            if (found := look()) is not None:
                self.say(f"{what}: there after {time.monotonic() - began:.0f} s")
                return found
            if (now := count_files()) != num_files:
                num_files, moved = now, time.monotonic()
            pause = min(1.5 * pause, MAX_PAUSE_SECONDS)
        raise FileNotFoundError(
            f"waited {time.monotonic() - began:.0f} s for {what}, the last {self.limit_seconds:g} s without a new file:"
            " is the build still running? Run it again to continue it, and then this"
        )
