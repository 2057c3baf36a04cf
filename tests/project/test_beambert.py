"""The console script, as a wheel installs it, beside files that only look like ours."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli import COMMANDS as PIPELINE
from pipeline.command_line.words import find_config, recipes
from trainer.beambert import COMMANDS
from trainer.cli import COMMANDS as TRAINER

ROOT = Path(__file__).parents[2]
RECIPES = sorted(ROOT.glob("configs/*/*.yaml"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of an installation, without a C compiler, which takes seconds."""
    checkout, site = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("site")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    for room in ("pipeline", "trainer", "tokenizer"):
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "build")
        shutil.copytree(ROOT / room, checkout / room, ignore=ignored)
    wheel = "from setuptools.build_meta import build_wheel; print(build_wheel('made'))"
    environment = os.environ | {"CC": "/no/such/compiler"}
    subprocess.check_output([sys.executable, "-c", wheel], cwd=checkout, env=environment)
    made = next((checkout / "made").iterdir())
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--quiet"]
    subprocess.check_output([*pip, "--target", site, made])
    return site


@pytest.fixture
def beambert(installed, tmp_path):
    """Runs the script in a folder whose files have the names of our packages; its output."""
    (tmp_path / "pipeline.py").write_text("raise SystemExit('a stranger')\n")
    (tmp_path / "trainer.py").write_text("raise SystemExit('a stranger')\n")
    left_out = ("PYTHONPATH", "BEAMBERT_COMPILED", "PYTHONSAFEPATH")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}

    def run(*words, code=0, **more):
        ran = subprocess.run(
            [installed / "bin" / "beambert", *words],
            cwd=tmp_path, env=environment | {"PYTHONPATH": str(installed)} | more, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert ran.returncode == code, ran.stderr
        return ran.stdout if code == 0 else ran.stderr

    return run


@pytest.mark.processes
def test_an_installation_knows_its_version_and_its_recipes(beambert):
    assert beambert("--version").startswith("beambert 0.")
    planned = beambert("plan", "--config", "bert-large")
    assert planned == beambert("plan", "--config", "configs/pretrain/bert-large.yaml")
    assert planned.startswith("large: ")
    assert "did you mean bert-large" in beambert("plan", "--config", "bert-larg", code=2)


@pytest.mark.processes
def test_every_recipe_is_installed(installed):
    found = (installed / "pipeline/command_line/recipes").glob("*/*.yaml")
    installed, ours = ({path.name: path.read_text() for path in of} for of in (found, RECIPES))
    assert installed == ours


@pytest.mark.processes
def test_an_installation_builds_where_a_stranger_is_called_pipeline(beambert, tmp_path):
    """In worker processes too; a filter that lies in the folder is found there."""
    mine = "def keep(text):\n    return 'short' if len(text) < 9 else None\n"
    (tmp_path / "mine.py").write_text(mine)
    texts = [f"The {i} quick foxes jumped.\nThen {i * 7} dogs slept." for i in range(40)]
    for name, part in (("a", ["Tiny.", *texts[::2]]), ("b", texts[1::2])):
        lines = (f"{json.dumps({'text': text})}\n" for text in part)
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    words = (
        "--config demo --input a.jsonl b.jsonl --output data --vocab_size 200 --filter mine:keep"
    )
    beambert("build", *f"{words} --workers 2 --seq_lens 32 --passes 1".split())
    assert "sound" in beambert("verify", "data")
    assert "short" in beambert("report-data", "data")


def test_every_command_of_both_programs_is_there_once():
    both = (*PIPELINE.values(), *TRAINER.values())
    assert {id(each) for each in both} == {id(each) for each in COMMANDS.values()}
    assert COMMANDS["report-data"] is PIPELINE["report"]
    assert COMMANDS["report"] is TRAINER["report"]


def test_recipes_have_names_of_their_own():
    assert sorted(recipes()) == sorted(path.stem for path in RECIPES)


def test_a_file_on_disk_wins_over_a_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_config("bert-base").samefile(ROOT / "configs/pretrain/bert-base.yaml")
    (tmp_path / "bert-base").write_text("")
    assert find_config("bert-base") == Path("bert-base")
    said = r"^no configuration file configs/data/bert-base.yaml$"
    with pytest.raises(FileNotFoundError, match=said):
        find_config("configs/data/bert-base.yaml")
