"""Trains BERT on shards: streaming, the model, ZeRO, checkpoints, fine-tuning, export.

The names in `__init__.pyi` are public, as in `from trainer import open_model`. Each is imported
when it is first asked for, so `import trainer` loads neither torch nor DeepSpeed. Everything else
in this package is private and may move without notice; docs/architecture.md shows its rooms.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
