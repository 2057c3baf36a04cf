"""The examples in docs/library.md and the commands in docs/evaluating.md, run as they stand."""

import importlib
import re
import shlex
from pathlib import Path

import pytest
import torch

from tests.loaded_python import run_python
from tests.trainer.lettered_model import export_lettered_model
from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import train_tiny_run
from tests.trainer.two_ranks import run_nodes
from trainer.cli import main
from trainer.inference.open_model import open_model

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def examples(tmp_path, monkeypatch):
    export_lettered_model(tmp_path / "hf", num_layers=2)
    monkeypatch.chdir(tmp_path)
    return re.findall(r"```python\n(.*?)```", (DOCS / "library.md").read_text(), re.DOTALL)


def test_features_in_ten_lines(examples, capsys):
    assert len([line for line in examples[0].splitlines() if line]) <= 10
    exec(examples[0], {})
    lines = capsys.readouterr().out.splitlines()
    tokenizer = open_model("hf").tokenizer()
    pieces = tokenizer.encode("It lies on the Seine.", add_special_tokens=False).tokens
    assert [line.split()[1] for line in lines if line.startswith("1 ")] == pieces
    assert all(line.endswith("(2, 64)") for line in lines)


def test_vectors_by_hand(examples):
    names = {}
    exec(examples[1], names)
    assert names["hidden"].shape == (sum(map(len, names["ids"])), 64)
    assert names["pooled"].shape == (2, 64)
    assert torch.isfinite(names["hidden"]).all()


def test_a_vocabulary_is_learned_and_used(examples, capsys):
    exec(examples[2], {})
    assert capsys.readouterr().out == "['the', 'cat', 'sat', '[UNK]']\n"


@pytest.fixture
def programs(examples, tmp_path):
    """The examples that are programs, in files as their first lines name them, beside a dataset."""
    write_tiny_dataset(tmp_path / "data", seq_lens=(128,))
    for code in examples:
        if found := re.match(r"# (\w+\.py)\n", code):
            (tmp_path / found[1]).write_text(code)
    assert {path.stem for path in tmp_path.glob("*.py")} == {
        "batches", "plain_loop", "with_hugging_face", "with_lightning", "with_torchrun",
        "samples", "documents",  # which tests/pipeline/test_transforms.py runs
    }  # fmt: skip
    return tmp_path


def run_program(folder, *command):
    """The lines that `python COMMAND` prints, in order of the alphabet."""
    ran = run_python(command, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    return sorted(ran.stdout.splitlines())


def test_a_plain_loop_trains_on_the_stream(programs, capsys):
    exec((programs / "plain_loop.py").read_text(), {})
    assert capsys.readouterr().out.splitlines()[-1] == "position 96"


@pytest.mark.engines
def test_torchruns_ranks_train_on_the_stream(programs):
    ranks = run_nodes([(["with_torchrun.py"], 2)], cwd=programs)
    assert [rank.returncode for rank in ranks] == [0, 0], ranks[0].stderr
    assert [rank.stdout for rank in ranks] == [f"rank {n}: position 96\n" for n in range(2)]


@pytest.mark.parametrize(
    ("program", "needs"),
    [("with_lightning.py", "pytorch_lightning"), ("with_hugging_face.py", "accelerate")],
)
@pytest.mark.engines
def test_other_trainers_train_on_the_stream_and_go_on(programs, program, needs):
    """3 steps of 32 instances, and after them 3 more: nothing read ahead is lost."""
    pytest.importorskip(needs, reason=f"{needs} is in the extra dev")
    assert "position 96" in run_program(programs, program, 3)
    assert "position 192" in run_program(programs, program, 6)


def test_every_call_that_the_page_names_is_there():
    calls = re.findall(r"`(pipeline|trainer|tokenizer)\.(\w+)\(", (DOCS / "library.md").read_text())
    assert len(calls) >= 5
    assert all(callable(getattr(importlib.import_module(module), name)) for module, name in calls)


@pytest.mark.engines
def test_commands_of_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train_tiny_run(write_tiny_dataset(tmp_path / "data"), tmp_path / "run")
    (tmp_path / "texts.txt").write_text("w1 w2\n")
    (tmp_path / "blimp.jsonl").write_text('{"sentence_good": "w1 w2", "sentence_bad": "w2"}\n')
    blocks = re.findall(r"```bash\n(.*?)```", (DOCS / "evaluating.md").read_text(), re.DOTALL)
    commands = [shlex.split(line)[3:] for line in "".join(blocks).splitlines()]
    assert [command[0] for command in commands] == ["evaluate", "evaluate", "fill-mask", "features"]
    for command in commands:
        layers = ["--layers", "-1,-2"] if command[0] == "features" else []  # of the tiny model
        assert main([*command, *layers]) == 0, capsys.readouterr().err
    assert (tmp_path / "found.json").is_file()
    assert (tmp_path / "pairs.json").is_file()
    assert (tmp_path / "states.parquet").is_file()
