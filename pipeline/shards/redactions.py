"""Says from the settings of a dataset whether it is redacted, and what was left out of it.

A redacted dataset is a copy of another dataset without the instances of some documents
(`pipeline.redaction`). The other dataset is called its predecessor. It may be redacted itself.
"""

from collections.abc import Iterator, Mapping
from typing import Any

REDACTIONS = "redactions"
"""Key of the settings of a redacted dataset.

The value is a list with an object for each redaction, the oldest first. The object has the
root_hash of the predecessor, and the numbers of documents and instances that were left out. Other
datasets do not have the key.
"""


def is_redacted(settings: Mapping[str, Any]) -> bool:
    """Returns whether a dataset with these settings in its manifest is redacted."""
    return REDACTIONS in settings


def describe_redactions(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yields a sentence about each redaction of a dataset, the oldest first.

    Args:
        settings: The settings in the dataset's manifest.
    """
    for redaction in settings.get(REDACTIONS, ()):
        yield (
            f"Redacted: {redaction['documents']:,} document(s), in {redaction['instances']:,}"
            f" instance(s), were left out of the dataset with the root hash"
            f" {redaction['root_hash']}."
        )
