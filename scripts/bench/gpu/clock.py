"""Time of steps and of their parts: CUDA events on a GPU, the host's clock elsewhere."""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

PARTS = ("forward", "backward", "optimizer")


class Marks:
    """Moments of one step, by name of what begins; `seconds` waits for the device."""

    def __init__(self, device: torch.device) -> None:
        """No moment yet."""
        self._is_cuda = device.type == "cuda"
        self._moments: list[tuple[str, Any]] = []

    def begin(self, name: str) -> None:
        """A step begins with `name`; forgets the one before."""
        self._moments.clear()
        self.mark(name)

    def mark(self, name: str) -> None:
        """What is done from now on is `name`."""
        if self._is_cuda:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._moments.append((name, event))
        else:
            self._moments.append((name, time.perf_counter()))

    def around(self, name: str, function: Callable[..., Any], then: str) -> Callable[..., Any]:
        """The function, with what it does counted as `name` and what follows as `then`."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            self.mark(name)
            result = function(*args, **kwargs)
            self.mark(then)
            return result

        return timed

    def seconds(self) -> dict[str, float]:
        """Seconds of every part and of the whole step, from the first moment to the last.

        On a GPU these are its own: an idle device is counted to the part during which it waited for
        the host.
        """
        if self._is_cuda:
            torch.cuda.synchronize()
        spent = dict.fromkeys((*PARTS, "rest"), 0.0)
        for (name, start), (_, stop) in pairwise(self._moments):
            spent[name] += start.elapsed_time(stop) / 1e3 if self._is_cuda else stop - start
        return spent | {"step": sum(spent.values())}
