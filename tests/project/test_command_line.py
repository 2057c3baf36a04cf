"""Flags over frozen dataclasses: files, flags, unknown keys, exit codes."""

import os
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from pipeline.command_line import Command, parse_settings, run_program


@dataclass(frozen=True)
class Schedule:
    """A schedule.

    Attributes:
        peak_lr: Highest rate.
    """

    peak_lr: float = 1e-4


@dataclass(frozen=True)
class Settings:
    """Settings of a test.

    Attributes:
        output: Where to.
        input: Files, or
            globs.
        steps: How many.
        schedule: The schedule.
        phases: One schedule a phase.
    """

    output: str
    input: list[str] = field(default_factory=list)
    steps: int = 3
    schedule: Schedule = field(default_factory=Schedule)
    phases: list[Schedule] = field(default_factory=list)


@dataclass(frozen=True)
class Look:
    """Looks at something.

    Attributes:
        folder: At what.
    """

    folder: str


def fail(_settings, _remainder):
    raise ValueError("FILE:3: found this, expected that")


def show(settings, remainder):
    print(settings, remainder)


@pytest.fixture
def commands(monkeypatch):
    # The functions are found by name, as they are in the real programs.
    monkeypatch.setitem(sys.modules, "command_line_examples", sys.modules[__name__])
    return {
        "build": Command("builds", "command_line_examples:Settings", "command_line_examples:show", (), True),
        "look": Command("looks", "command_line_examples:Look", "command_line_examples:show", ("folder",)),
        "fail": Command("fails", "command_line_examples:Look", "command_line_examples:fail", ("folder",)),
    }


def test_flags_win_over_files_wherever_they_stand(commands, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("steps: 7\ninput: [q, r]\nschedule:\n  peak_lr: 3e-4\nphases: [{peak_lr: 1}, {peak_lr: 2}]\n")
    settings = parse_settings(
        "program build", commands["build"], ["--steps", "5", "--output", "o", "--config", str(file)]
    )
    assert settings == Settings("o", ["q", "r"], 5, Schedule(3e-4), [Schedule(1.0), Schedule(2.0)])


def test_a_list_takes_several_words(commands):
    settings = parse_settings("program build", commands["build"], ["--input", "a b", "c", "--output", "o"])
    assert settings.input == ["a b", "c"]


def test_a_list_that_begins_with_a_negative_number_is_a_value(commands, capsys):
    commands["finetune"] = Command("", "trainer.finetune.settings:FinetuneSettings", "command_line_examples:show")
    needed = [word for name in ("task", "model", "train", "validation", "output") for word in (f"--{name}", "x")]
    arguments = ["finetune", *needed, "--tokens.feature_layers", "-1,-9"]
    assert run_program("program", "Tests.", commands, arguments) == 0
    assert "feature_layers='-1,-9'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--output", "o", "--stepz", "3"], "the keys are output, input, steps, schedule.peak_lr, phases.peak_lr"),
        (["--output", "o", "--steps", "many"], "steps"),
        (["--steps", "3"], "output"),
        (["--output", "o", "--config", "missing.yaml"], "no configuration file missing.yaml"),
        (["--output", "o", "--phases", "[{peak: 3}]"], "phases.peak_lr"),
    ],
)
def test_wrong_flags_are_named(commands, capsys, arguments, said):
    assert run_program("program", "Tests.", commands, ["build", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_an_unknown_key_of_a_file_shows_the_choices(commands, capsys, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("schedule:\n  warmup: 3\n")
    assert run_program("program", "Tests.", commands, ["build", "--output", "o", "--config", str(file)]) == 2
    assert "schedule.peak_lr" in capsys.readouterr().err


def test_what_follows_the_separator_is_passed_on(commands, capsys):
    assert run_program("program", "Tests.", commands, ["build", "--output", "o", "--", "--runner=X"]) == 0
    assert "['--runner=X']" in capsys.readouterr().out
    assert run_program("program", "Tests.", commands, ["look", "here", "--", "--runner=X"]) == 2


def test_the_launchers_rank_is_ignored(commands, capsys):
    assert run_program("program", "Tests.", commands, ["--local_rank=1", "look", "here"]) == 0
    assert "Look(folder='here')" in capsys.readouterr().out


def test_a_users_fault_is_one_line_from_rank_zero_only(commands, capsys, monkeypatch):
    assert run_program("program", "Tests.", commands, ["fail", "here"]) == 2
    assert capsys.readouterr().err == "program fail: error: FILE:3: found this, expected that\n"
    monkeypatch.setenv("RANK", "1")
    assert run_program("program", "Tests.", commands, ["fail", "here"]) == 2
    assert capsys.readouterr().err == ""


def test_help_lists_the_commands(commands, capsys):
    assert run_program("program", "Tests.", commands, ["--help"]) == 0
    assert "look   looks" in capsys.readouterr().out
    assert run_program("program", "Tests.", commands, ["dance"]) == 2
    assert "the commands are build, look, fail" in capsys.readouterr().err


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
@pytest.mark.parametrize("arguments", [["pipeline", "--help"], ["trainer", "--help"]])
def test_a_reader_that_leaves_ends_a_command_without_a_word(arguments, closed):
    """As `| head` and `2>&1 | head` leave: the exit code is that of SIGPIPE, as shells say it."""
    arguments = arguments if closed == "stdout" else [arguments[0], "no-such-command"]
    reader, writer = os.pipe()
    os.close(reader)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, closed: writer}
    ran = subprocess.run([sys.executable, "-m", *arguments], **streams, text=True, check=False)
    os.close(writer)
    assert (ran.stderr if closed == "stdout" else ran.stdout) == ""
    assert ran.returncode == 141


def test_a_pipe_that_broke_elsewhere_is_an_error(commands, monkeypatch):
    """Such as the connection to an object store."""

    def lose_connection(_settings, _remainder):
        raise BrokenPipeError("connection lost")

    monkeypatch.setattr(sys.modules[__name__], "show", lose_connection)
    with pytest.raises(BrokenPipeError, match="connection lost"):
        run_program("program", "Tests.", commands, ["look", "here"])
