"""The commands of the README and of docs/your-text.md, run in a small form: small text, few steps."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.command_line.program import parse_settings
from tests.loaded_python import run_python
from tests.ports import free_port
from trainer.cli import COMMANDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGE = (ROOT / "docs/your-text.md").read_text()

PHASES = ", ".join(
    f"{{seq_len: {seq_len}, global_batch: 8, steps: {steps}, peak_lr: 1e-4, warmup_steps: 1}}"
    for seq_len, steps in ((128, 2), (512, 1))
)

# What makes a command small: flags added to it, by its first words. A command without a row here
# fails the test.
SMALLER = {
    "python -m pipeline build": ["--passes", "1", "--vocab_size", "1000"],
    "python -m pipeline verify": [],
    "python -m pipeline inspect": [],
    "python -m pipeline report": [],
    "deepspeed --num_gpus 2": [
        "--phases",
        f"[{PHASES}]",
        "--model.preset",
        "tiny",
        "--validation.num_instances",
        "8",
    ],
    "python -m trainer plan": [],
    "python -m trainer report": [],
    "python -m trainer export": [],
    "python -m trainer fill-mask": [],
    "python -m trainer finetune": ["--search_epochs", "1"],
    "python -m trainer features": [],
    "python -m trainer evaluate": [],
}
NEEDS_A_CLUSTER = ("scripts/launch-", "--hostfile")


def commands():
    blocks = re.findall(r"```bash\n(.*?)```", README + PAGE, re.DOTALL)
    text = "\n".join(blocks).replace("\\\n", " ")
    return [line.split("  #")[0].strip() for line in text.splitlines() if line.strip()]


def runnable():
    return [
        command for command in commands() if not any(word in command for word in NEEDS_A_CLUSTER)
    ]


def smaller(command):
    start = next((start for start in SMALLER if command.startswith(start)), None)
    assert start is not None, f"a page has a command that no test runs: {command}"
    words = shlex.split(command) + SMALLER[start]
    return (
        [words[0], "--master_port", str(free_port()), *words[1:]]
        if words[0] == "deepspeed"
        else words
    )


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with my-text/ as a user has it, and the checkout's configs."""
    folder = tmp_path_factory.mktemp("readme")
    corpus = [
        sys.executable,
        ROOT / "scripts/docstring_corpus.py",
        folder / "my-text/a.jsonl",
        "--max_bytes",
        "300000",
    ]
    subprocess.run(corpus, check=True, capture_output=True)
    (folder / "configs").symlink_to(ROOT / "configs")
    write_task_files(folder)
    return folder


def write_task_files(folder):
    """Files as SST-2, SQuAD 1.1 and CoNLL-2003 have them, a few examples each."""
    (folder / "SST-2").mkdir()
    for name in ("SST-2/train.tsv", "SST-2/dev.tsv"):
        (folder / name).write_text("sentence\tlabel\n" + "a lovely film\t1\na dull film\t0\n" * 4)
    answer = {"text": "the Nile", "answer_start": 18}
    question = {"id": "q1", "question": "Which river is long?", "answers": [answer]}
    paragraph = {"context": "They have walked: the Nile is long.", "qas": [question]}
    squad = json.dumps({"version": "1.1", "data": [{"title": "Rivers", "paragraphs": [paragraph]}]})
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        (folder / name).write_text(squad)
    for name in ("train.conll", "dev.conll"):
        (folder / name).write_text("Ada B-PER\nmet O\nParis B-LOC\n\nNo O\none O\n\n" * 2)


@pytest.mark.engines
def test_the_commands_for_your_own_text_run_in_order(workplace):
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": "",
    }
    printed = {}
    for command in (each for each in runnable() if not each.startswith(("scripts/", ". scripts/"))):
        program, *arguments = smaller(command)
        if arguments[:2] == ["-m", "trainer"]:
            ran = run_python(arguments, cwd=workplace)
        else:
            ran = subprocess.run(
                [program, *arguments],
                cwd=workplace,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
        assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
        printed[command.split(" --")[0]] = ran.stdout + ran.stderr
    assert "sound" in printed["python -m pipeline verify data"]
    assert "This model has seen" in printed["python -m trainer fill-mask"]
    for model in ("hf", "sst2/best", "squad/best", "entities/best"):
        assert (workplace / model / "model.safetensors").exists()
    assert (workplace / "a.parquet").exists()


@pytest.mark.processes
def test_the_two_scripts_explain_themselves():
    for command in (each for each in runnable() if each.startswith("scripts/")):
        assert os.access(ROOT / command.split()[0], os.X_OK)
    ran = subprocess.run(
        [ROOT / "scripts/demo", "--help"], capture_output=True, text=True, check=True
    )
    assert "--minutes" in ran.stdout
    wrong = subprocess.run(
        [ROOT / "scripts/demo", "--minutes", "soon"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2
    assert "--minutes takes a whole number" in wrong.stderr


@pytest.mark.processes
def test_a_failed_installation_is_not_taken_for_one_that_succeeded(tmp_path):
    """Sourced by a person's shell, which does not end at the first error."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ]\n')
    python.chmod(0o755)
    code = 'cd /; . "$1/scripts/environment.sh"; echo "$? $PATH"'
    environment = {
        "PATH": os.environ["PATH"],
        "BASE_PYTHON": str(python),
        "VENV": str(tmp_path / "venv"),
    }
    ran = subprocess.run(
        ["bash", "-c", code, "bash", ROOT],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == f"1 {os.environ['PATH']}\n"
    assert not (tmp_path / "venv/.beambert-installed").exists()


def test_doctor_can_stand_in_the_place_of_pretrain(monkeypatch):
    monkeypatch.chdir(ROOT)
    found = [command.partition(" --module trainer pretrain ")[2] for command in commands()]
    parsed = [
        parse_settings("doctor", COMMANDS["doctor"], shlex.split(words)) for words in found if words
    ]
    assert [(settings.data, settings.output) for settings in parsed] == [
        (["data"], "run"), (["s3://bucket/data"], "/shared/run"),
    ]  # fmt: skip


def test_commands_for_clusters_name_what_exists():
    for command in (each for each in commands() if each not in runnable()):
        for path in re.findall(r"configs/\S+\.yaml", command):
            assert (ROOT / path).is_file()


def test_readme_is_short():
    assert len(README.splitlines()) <= 110
