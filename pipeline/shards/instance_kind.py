"""Says from the settings of a dataset whether its instances hold one segment or two."""

from collections.abc import Mapping
from typing import Any, Literal

INSTANCES = "instances"
"""Key of the settings of a dataset whose instances are not pairs of segments."""

InstanceKind = Literal["segment-pairs", "doc-sentences", "single-sentence"]
"""What an instance holds: BERT's two segments, consecutive sentences, or one sentence."""

SEGMENT_PAIRS: InstanceKind = "segment-pairs"


def has_pairs(settings: Mapping[str, Any]) -> bool:
    """Returns whether instances are pairs of segments, [CLS] A [SEP] B [SEP].

    All others are [CLS] A [SEP], from which next sentence prediction cannot be learned.

    Args:
        settings: The settings in the dataset's manifest.
    """
    return bool(settings.get(INSTANCES, SEGMENT_PAIRS) == SEGMENT_PAIRS)
