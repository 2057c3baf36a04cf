"""What a shell is offered at TAB, asked as argcomplete's functions for bash and zsh ask."""

import os
import subprocess
import sys

import pytest

BEAMBERT = ("-c", "from trainer.beambert import main; main()")


def offered(tmp_path, program, line, first_word=1):
    """The words that may stand where a command line ends; and the modules that were imported."""
    asked = {"_ARGCOMPLETE": str(first_word), "COMP_LINE": line, "COMP_POINT": str(len(line))}
    asked |= {"_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "answer"), "_ARGCOMPLETE_IFS": "\n"}
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", *program],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == ""
    imported = {row.rpartition("|")[2].strip() for row in ran.stderr.splitlines()}
    return (tmp_path / "answer").read_text().split(), imported


@pytest.mark.processes
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("beambert bu", ["build"]),
        ("beambert report", ["report-data", "report"]),
        ("beambert build --vocab", ["--vocab", "--vocab_size", "--vocab_entries"]),
        ("beambert build --input a.txt b.txt --words ", ["bert", "whitespace"]),
        ("beambert inspect data --split t", ["train"]),
        ("beambert vocab --max_", ["--max_characters"]),
        ("beambert pretrain --phases.seq", ["--phases.seq_len"]),
    ],
)
def test_commands_flags_and_choices_are_offered_at_once(tmp_path, line, words):
    found, imported = offered(tmp_path, BEAMBERT, line)
    assert found == words
    assert "argcomplete" in imported
    assert not imported & {"torch", "deepspeed", "apache_beam", "pyarrow", "numpy"}


@pytest.mark.processes
def test_modules_answer_too(tmp_path):
    line = "python -m trainer evaluate --pairs_"
    assert offered(tmp_path, ("-m", "trainer"), line, first_word=3)[0] == ["--pairs_limit"]
