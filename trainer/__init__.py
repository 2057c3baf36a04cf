"""Trains BERT on shards: streaming, the model, ZeRO, checkpoints, fine-tuning, export.

The names below are public, as in `from trainer import open_model`. Each is imported when it is
first asked for, so `import trainer` loads neither torch nor DeepSpeed. Everything else in this
package is private and may move without notice; docs/architecture.md shows its rooms.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "BertConfig": "trainer.model.config",
    "FeatureExtractor": "trainer.inference.features.extract",
    "MicroBatch": "trainer.stream.batches.pack",
    "OpenedModel": "trainer.inference.open_model",
    "PackedInputs": "trainer.model.packed_inputs",
    "RankStep": "trainer.stream.step",
    "Reading": "trainer.stream.reading.settings",
    "build_model": "trainer.model.bert",
    "evaluate": "trainer.inference.evaluate",
    "evaluate_pairs": "trainer.inference.evaluate_pairs",
    "fill_mask": "trainer.inference.ask",
    "forward_sums": "trainer.engine.train_step",
    "iterate_rows": "trainer.stream.pipeline",
    "main": "trainer.cli",
    "open_model": "trainer.inference.open_model",
    "pack_sequences": "trainer.model.packed_inputs",
    "pad_micro_batch": "trainer.stream.batches.pack",
    "plain_texts": "trainer.inference.features.extract",
    "planned_steps": "trainer.stream.pipeline",
    "preset": "trainer.model.config",
    "read_pairs": "trainer.minimal_pairs.read",
}
"""The module of each public name; `__init__.pyi` says the same to editors and type checkers."""

__all__ = tuple(_MODULES)


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """Returns the public names, which `dir` and completion show."""
    return [*globals(), *_MODULES]
