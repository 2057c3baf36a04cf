"""Turns text into wordpiece ids: vocabularies, encoders, learning, and export to `tokenizers`.

The names below are public, as in `from tokenizer import learn_vocabulary`. Each is imported when
it is first asked for, so `import tokenizer` takes no time. Everything else in this package is
private and may move without notice.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "Encoder": "tokenizer.encode",
    "Vocabulary": "tokenizer.vocab",
    "WordRule": "tokenizer.word_rule",
    "build_tokenizer": "tokenizer.export",
    "count_words": "tokenizer.words",
    "learn_vocabulary": "tokenizer.learn",
    "parse_vocab": "tokenizer.vocab",
}
"""The module of each public name; `__init__.pyi` says the same to editors and type checkers."""

__all__ = tuple(_MODULES)


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """Returns the names that `dir` and completion show, with public names not yet imported."""
    return [*globals(), *_MODULES]
