"""The examples in docs/library.md and the commands in docs/evaluating.md, run as they stand."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from tests.trainer.lettered_model import export_lettered_model
from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import train_tiny_run
from trainer.cli import main
from trainer.inference.open_model import open_model

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def examples(tmp_path, monkeypatch):
    export_lettered_model(tmp_path / "hf", num_layers=2)  # as many as the tutorial's and the demo's model have
    monkeypatch.chdir(tmp_path)
    return re.findall(r"```python\n(.*?)```", (DOCS / "library.md").read_text(), re.DOTALL)


def test_features_in_ten_lines(examples, capsys):
    assert len([line for line in examples[0].splitlines() if line]) <= 10
    exec(examples[0], {})
    lines = capsys.readouterr().out.splitlines()
    pieces = open_model("hf").tokenizer().encode("It lies on the Seine.", add_special_tokens=False).tokens
    assert [line.split()[1] for line in lines if line.startswith("1 ")] == pieces
    assert all(line.endswith("(1, 128)") for line in lines)


def test_vectors_by_hand(examples):
    names = {}
    exec(examples[1], names)
    assert names["hidden"].shape == (sum(map(len, names["ids"])), 64)
    assert names["pooled"].shape == (2, 64)
    assert torch.isfinite(names["hidden"]).all()


def test_every_call_that_the_page_names_is_there():
    import importlib

    calls = re.findall(r"`(trainer\.[\w.]+)\.(\w+)\(", (DOCS / "library.md").read_text())
    assert len(calls) >= 5
    assert all(callable(getattr(importlib.import_module(module), name)) for module, name in calls)


def test_commands_of_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train_tiny_run(write_tiny_dataset(tmp_path / "data"), tmp_path / "run")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("w1 w2\n")
    blocks = re.findall(r"```bash\n(.*?)```", (DOCS / "evaluating.md").read_text(), re.DOTALL)
    commands = [shlex.split(line)[3:] for block in blocks for line in block.strip().splitlines()]
    assert [command[0] for command in commands] == ["evaluate", "fill-mask", "nsp", "features"]
    for command in commands:
        shallow = ["--layers", "-1,-2"] if command[0] == "features" else []  # the tiny model has two
        assert main([*command, *shallow]) == 0, capsys.readouterr().err
    assert (tmp_path / "found.json").is_file()
    assert (tmp_path / "features" / "features.json").is_file()
