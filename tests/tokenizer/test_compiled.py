"""Which path is chosen, by the environment and by what is built."""

import os
import sys

import pytest

from tokenizer.compiled import VARIABLE, load


@pytest.fixture
def built(tmp_path, monkeypatch):
    """A module that stands for a compiled one, and its source, an hour older."""
    source, module = tmp_path / "native/part.c", tmp_path / "_stand_in.py"
    source.parent.mkdir()
    source.write_text("")
    module.write_text("")
    os.utime(source, (1, module.stat().st_mtime - 3600))
    monkeypatch.syspath_prepend(tmp_path)
    yield source
    sys.modules.pop("_stand_in", None)


@pytest.mark.parametrize("value", [None, "", "1", "0"])
def test_what_is_built_is_used_unless_it_is_not_wanted(monkeypatch, built, value):
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    assert getattr(load("_stand_in"), "__name__", None) == (None if value == "0" else "_stand_in")


@pytest.mark.parametrize("problem", ["missing", "old"])
def test_what_is_missing_or_old_is_not_used(monkeypatch, built, problem):
    name = "tokenizer._no_such_module" if problem == "missing" else "_stand_in"
    os.utime(built)
    os.utime(built, (1, built.stat().st_mtime + 3600))
    monkeypatch.delenv(VARIABLE, raising=False)
    assert load(name) is None
    monkeypatch.setenv(VARIABLE, "1")
    said = "is not built" if problem == "missing" else r"is older than part\.c"
    with pytest.raises(ImportError, match=said) as raised:
        load(name)
    assert "build_ext --inplace" in str(raised.value)


def test_another_value_is_refused(monkeypatch):
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(ValueError, match=r"BEAMBERT_COMPILED=yes: expected 0 .*, 1 .* or unset"):
        load("tokenizer._matcher")
