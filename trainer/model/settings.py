"""Which model is trained, as run files say it."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class ModelSettings:
    """Which BERT is trained.

    Attributes:
        preset: A released size of BERT.
        overrides: Fields of BertConfig (trainer/model/config.py) that differ from the preset's,
            such as {"hidden_dropout": 0.0}. The vocabulary's size is the dataset's and cannot be
            set.
    """

    preset: Literal["tiny", "mini", "small", "medium", "base", "large"] = "base"
    overrides: dict[str, Any] = field(default_factory=dict)
