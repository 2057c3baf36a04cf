"""The device of commands that run on one."""

import torch


def choose_device(name: str) -> torch.device:
    """The device of --device auto, cpu or cuda.

    Raises:
        ValueError: cuda is asked for and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda, and torch finds no GPU here; give --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
