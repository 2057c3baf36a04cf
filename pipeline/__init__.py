"""Turns documents into shards: the half of the system that runs on Apache Beam.

The names below are public, as in `from pipeline import open_dataset`. Each is imported when it is
first asked for, so `import pipeline` loads neither Beam nor pyarrow. Everything else in this
package is private and may move without notice; docs/architecture.md shows its rooms.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "Block": "pipeline.shards.block",
    "Dataset": "pipeline.shards.dataset",
    "Document": "pipeline.documents",
    "ReadInstances": "pipeline.transforms.instances",
    "Source": "pipeline.documents.source",
    "WriteToWebDataset": "pipeline.transforms.webdataset",
    "WriteTokens": "pipeline.transforms.tokens",
    "WrittenTokens": "pipeline.transforms.tokens",
    "decode_block": "pipeline.shards.block",
    "finish_build": "pipeline.transforms.tokens",
    "main": "pipeline.cli",
    "open_dataset": "pipeline.shards.dataset",
    "read_blocks": "pipeline.shards.dataset",
    "verify_dataset": "pipeline.shards.verify",
}
"""The module of each public name; `__init__.pyi` says the same to editors and type checkers."""

__all__ = tuple(_MODULES)


def __getattr__(name: str) -> Any:
    """Imports the module of a public name, and returns the object that has this name there.

    Python calls this function for a name that is not defined in this file.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """Returns the names that `dir` and completion show: those of this file and the public ones."""
    return [*globals(), *_MODULES]
