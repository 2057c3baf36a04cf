"""Turns documents into shards: the half of the system that runs on Apache Beam.

The names in `__init__.pyi` are public, as in `from pipeline import open_dataset`. Each is
imported when it is first asked for, so `import pipeline` loads neither Beam nor pyarrow.
Everything else in this package is private and may move without notice; docs/architecture.md shows
its rooms.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
