"""Runs `python -m trainer`, but every step waits for all its weights before the next one begins.

slow_wire.py starts it, to measure what it saves that weights travel while the next step begins.
"""

import sys
from typing import Any
from unittest.mock import patch

from trainer.cli import main
from trainer.engine.train_step import train_step
from trainer.pretrain import loop


def step_and_wait(*arguments: Any, **options: Any) -> Any:
    """Makes a step, as `train_step` does, and waits for its weights."""
    return train_step(*arguments, **{**options, "waits_for_weights": True})


if __name__ == "__main__":
    with patch.object(loop, "train_step", step_and_wait):
        sys.exit(main())
