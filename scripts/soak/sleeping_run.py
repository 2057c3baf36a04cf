"""Runs `python -m trainer`, but every layer also sleeps, as if a slower device computed it.

    python scripts/soak/sleeping_run.py SECONDS pretrain ...

A layer sleeps SECONDS in a forward pass and twice as long in a backward pass. slow_wire.py starts
this program, to measure which messages travel during the passes: sleeping takes equally long on a
busy machine.
"""

import sys
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from trainer.cli import main
from trainer.model.bert import Layer


def sleeping(forward: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """Returns a layer's method `forward` that also sleeps, in both passes.

    Args:
        forward: The method that computes.
        seconds: Seconds of sleep in a forward pass.
    """

    def sleep_and_compute(layer: Layer, *arguments: Any) -> Any:
        time.sleep(seconds)
        hidden = forward(layer, *arguments)
        if hidden.requires_grad:
            hidden.register_hook(lambda _: time.sleep(2 * seconds))
        return hidden

    return sleep_and_compute


if __name__ == "__main__":
    with patch.object(Layer, "forward", sleeping(Layer.forward, float(sys.argv.pop(1)))):
        sys.exit(main())
