"""Turns text into wordpiece ids: vocabularies, the readable encoder and its C twin, learning.

The names in `__init__.pyi` are public, as in `from tokenizer import learn_vocabulary`. Each is
imported when it is first asked for, so `import tokenizer` takes no time. Everything else in this
package is private and may move without notice; docs/architecture.md shows its rooms.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
