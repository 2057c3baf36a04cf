"""Holds tests to one of two equal paths: plain Python, the definition, or a compiled module."""

import contextlib
from collections.abc import Iterator
from types import ModuleType

import pytest

from tokenizer.compiled import load


@contextlib.contextmanager
def taken_path(path: str, name: str, user: ModuleType, attribute: str) -> Iterator[None]:
    """Has `user.attribute` be the compiled module `name`, or None where `path` is "python".

    The test is skipped where the module is to be taken and is not there.
    """
    compiled = load(name) if path == "compiled" else None
    if path == "compiled" and compiled is None:
        pytest.skip(f"{name} is not built, or BEAMBERT_COMPILED is 0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(user, attribute, compiled)
        yield
