"""The console script, as a wheel installs it, beside files that only look like ours."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli import COMMANDS as PIPELINE
from pipeline.command_line.words import find_config, recipes
from tests.project.test_packaging import ROOMS, build, copy_checkout
from trainer.beambert import COMMANDS
from trainer.cli import COMMANDS as TRAINER
from trainer.settings import PretrainSettings

ROOT = Path(__file__).parents[2]
RECIPES = sorted(ROOT.glob("configs/*/*.yaml"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of an installation, without a C compiler, which takes seconds."""
    checkout, site = tmp_path_factory.mktemp("wheel") / "checkout", tmp_path_factory.mktemp("site")
    made = build("wheel", copy_checkout(checkout), CC="/no/such/compiler")
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

    def run(*words, code=0):
        program, own = installed / "bin" / "beambert", {"PYTHONPATH": str(installed)}
        how = {"cwd": tmp_path, "env": environment | own, "capture_output": True, "text": True}
        ran = subprocess.run([program, *words], **how, check=False)
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
def test_every_module_and_recipe_is_installed_and_neither_c_nor_what_is_compiled(installed):
    found = (installed / "pipeline/command_line/recipes").glob("*/*.yaml")
    there, ours = ({path.name: path.read_text() for path in of} for of in (found, RECIPES))
    assert there == ours
    ours = (path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    there = (path for path in installed.rglob("*") if path.suffix in (".py", ".c", ".h", ".so"))
    assert {path.relative_to(installed) for path in there} == {*ours}


@pytest.mark.processes
def test_an_installation_builds_where_a_stranger_is_called_pipeline(beambert, tmp_path):
    """In worker processes too; a filter that lies in the folder is found there."""
    mine = "def keep(text):\n    return 'short' if len(text) < 9 else None\n"
    (tmp_path / "mine.py").write_text(mine)
    texts = [f"The {i} quick foxes jumped.\nThen {i * 7} dogs slept." for i in range(40)]
    for name, part in (("a", ["Tiny.", *texts[::2]]), ("b", texts[1::2])):
        lines = (f"{json.dumps({'text': text})}\n" for text in part)
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    files = "--config demo --input a.jsonl b.jsonl --output data --filter mine:keep"
    flags = f"build {files} --vocab_size 200 --workers 2 --seq_lens 32 --passes 1"
    beambert(*flags.split())
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
    assert find_config("bert-base", PretrainSettings).samefile(
        ROOT / "configs/pretrain/bert-base.yaml"
    )
    (tmp_path / "bert-base").write_text("")
    assert find_config("bert-base", PretrainSettings) == Path("bert-base")
    said = r"^no configuration file configs/data/bert-base.yaml$"
    with pytest.raises(FileNotFoundError, match=said):
        find_config("configs/data/bert-base.yaml", PretrainSettings)
