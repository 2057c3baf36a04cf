"""Flags over frozen dataclasses: files, flags, unknown keys, exit codes."""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field, make_dataclass
from typing import Any, Literal

import pytest

from pipeline.cli import COMMANDS as PIPELINE
from pipeline.command_line.names import suggest
from pipeline.command_line.program import Command, check_least, parse_settings, run_program
from pipeline.command_line.words import parse_words


@dataclass(frozen=True)
class Schedule:
    """A schedule.

    Attributes:
        peak_lr: Highest rate.
    """

    peak_lr: float = 1e-4

    def __post_init__(self):
        if self.peak_lr < 0:
            raise ValueError(f"peak_lr is {self.peak_lr}; it must be 0 or more")


@dataclass(frozen=True)
class Settings:
    """Settings of a test.

    Attributes:
        output: Where to.
        phases: One schedule a phase.
        kind: Which.
    """

    output: str
    input: list[str] = field(default_factory=list)
    steps: int = 3
    schedule: Schedule = field(default_factory=Schedule)
    phases: list[Schedule] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    dry_run: bool = False
    kind: Literal["plain", "googles", 3] = "plain"
    limit: int | None = 5
    options: dict[str, Any] = field(default_factory=dict)
    names: list[str] | None = None
    shares: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Look:
    """Looks at something.

    Attributes:
        folder: At what.
        deep: How closely.
    """

    folder: str
    deep: bool = False


ANY_FLAG = ", and every other value after its flag"


def fail(_settings, _remainder):
    raise ValueError("FILE:3: found this, expected that")


def show(settings, remainder):
    print(settings, remainder)


@pytest.fixture
def commands(monkeypatch):
    # The functions are found by name, as they are in the real programs.
    monkeypatch.setitem(sys.modules, "examples", sys.modules[__name__])
    return {
        "build": Command("builds", "examples:Settings", "examples:show", (), True),
        "look": Command("looks", "examples:Look", "examples:show", ("folder",)),
        "fail": Command("fails", "examples:Look", "examples:fail", ("folder",)),
    }


@pytest.fixture
def run(commands, capsys):
    """Runs a command line; its exit code, and what it printed to both streams."""

    def run(line):
        return run_program("program", "Tests.", commands, shlex.split(line)), *capsys.readouterr()

    return run


@pytest.fixture
def build(commands):
    """The settings that a line of flags of the command build gives."""
    return lambda line: parse_settings("program build", commands["build"], shlex.split(line))


def test_flags_win_over_files_wherever_they_stand(build, tmp_path):
    file = tmp_path / "run.yaml"
    phases = "phases: [{peak_lr: 1}, {peak_lr: 2}]\n"
    file.write_text(f"steps: 7\ninput: [q, r]\nschedule:\n  peak_lr: 3e-4\n{phases}")
    settings = build(f"--steps 5 --output o --config {file} --input 'a b' c")
    schedules = Schedule(3e-4), [Schedule(1.0), Schedule(2.0)]
    assert settings == Settings("o", ["a b", "c"], 5, *schedules)


@pytest.mark.processes
def test_a_list_that_begins_with_a_negative_number_is_a_value(commands, run):
    settings = "trainer.finetune.settings:FinetuneSettings"
    commands["finetune"] = Command("", settings, "examples:show")
    needed = "--task x --model x --train x --validation x --output x"
    code, out, _ = run(f"finetune {needed} --tokens.feature_layers -1,-9")
    assert code == 0
    assert "feature_layers='-1,-9'" in out


WRONG_FLAGS = {
    "--peak_lr 3": "unknown flag --peak_lr; did you mean --schedule.peak_lr or --phases.peak_lr?",
    "--step 3": "unknown flag --step; did you mean --steps?",
    "--dry-run=SECRET": "unknown flag --dry-run; did you mean --dry_run?",
    "--quux 3": "unknown flag --quux; --help lists the flags",
    "--phases.peak 3": "unknown flag --phases.peak; did you mean --phases.peak_lr?",
    "-o 3": "unknown flag -o; --help lists the flags",
    "--steps many": "--steps: found 'many', expected a whole number",
    "--steps --dry_run": "--steps: a value is missing, expected a whole number",
    "--dry_run=perhaps": "--dry_run: found 'perhaps', expected true or false",
    "--schedule.peak_lr nan": "--schedule.peak_lr: found 'nan', expected a number",
    "--rates 0.1 x": "--rates: found 'x', expected a number",
    "--kind google": "--kind: found 'google', expected one of plain, googles, 3",
    "--limit 3.5": "--limit: found '3.5', expected a whole number or null",
    "--config missing.yaml": "no configuration file missing.yaml",
    "--config": "--config: a value is missing, expected the name of a YAML file",
    "--phases '[{peak: 3}]'": "unknown key phases[0].peak; did you mean phases[0].peak_lr?",
    "--phases '[{peak_lr: 3}'": "--phases: not YAML: expected ',' or ']', but got '<stream end>'",
    "--phases 3": "--phases: found '3', expected a list, such as [{...}, {...}]",
    "--input a --input b": "--input is given twice; give all its values after one: --input A B",
    "--steps 3 4": "unexpected word '4'; the command takes only flags",
}


@pytest.mark.processes
@pytest.mark.parametrize(("arguments", "said"), WRONG_FLAGS.items())
def test_wrong_flags_are_named(run, arguments, said):
    said = f"program build: error: {said}{ANY_FLAG if 'unexpected' in said else ''}\n"
    assert run(f"build --output o {arguments}") == (2, "", said)


@pytest.mark.parametrize(
    ("command", "line", "settings"),
    [
        ("build", "--dry_run --output o", Settings("o", dry_run=True)),
        ("build", "--output o --dry_run", Settings("o", dry_run=True)),
        ("build", "--dry_run=true --output o", Settings("o", dry_run=True)),
        ("build", "--output o --dry_run false", Settings("o", dry_run=False)),
        ("look", "--deep here", Look("here", deep=True)),
        ("look", "'--folder=--x y'", Look("--x y")),
        ("look", "'- a list'", Look("- a list")),
        ("build", "--output null --limit null --steps -3", Settings("null", limit=None, steps=-3)),
        ("build", "--schedule.peak_lr 1e-4 --output o", Settings("o", schedule=Schedule(1e-4))),
        ("build", "--phases.peak_lr 7 --output o", Settings("o", phases=[Schedule(7.0)])),
        (
            "build",
            "--phases.peak_lr 7 --output o --phases '[{peak_lr: 1}, {peak_lr: 2}]'",
            Settings("o", phases=[Schedule(7.0)] * 2),
        ),
    ],
)
def test_what_a_line_of_flags_gives(commands, command, line, settings):
    assert parse_settings("p", commands[command], shlex.split(line)) == settings


def test_one_key_of_a_mapping_and_of_a_list_of_one(build, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("options: {a: 1, b: 2}\nphases: [{peak_lr: 1}]\n")
    settings = build(f"--config {file} --output o --options.b 0.5 --phases.peak_lr 7")
    assert settings.options == {"a": 1, "b": 0.5}
    assert settings.phases == [Schedule(7.0)]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("line", "yaml", "names"),
    [
        ("--names a b", "names: [a, b]", ["a", "b"]),
        ("--names=a", "names: [a]", ["a"]),
        ("--names null", "names: null", None),
        ("--names null b", "names: ['null', b]", ["null", "b"]),
    ],
)
def test_a_list_that_may_be_null_is_set_by_flag_and_by_file(build, tmp_path, line, yaml, names):
    file = tmp_path / "run.yaml"
    file.write_text(yaml)
    assert build(f"--output o {line}").names == names
    assert build(f"--output o --config {file}").names == names
    assert build(f"--output o --config {file} --names other").names == ["other"]


def test_values_of_a_mapping_have_its_type(build, run, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("shares: {a: 1}\n")
    assert build(f"--output o --config {file} --shares.b 0.5").shares == {"a": 1.0, "b": 0.5}
    file.write_text("shares:\n  a: much\n")
    error = f"program build: error: {file}:2: shares.a: found 'much', expected a number\n"
    assert run(f"build --output o --config {file}") == (2, "", error)


@pytest.mark.parametrize(
    "hint",
    [
        tuple[int, ...],
        set[str],
        int | str,
        Literal["auto"] | int,
        list[list[str]],
        list[str | None],
        dict[int, str],
        dict[str, list[str]],
        dict[str, Any] | None,
        Schedule | None,
        list[Schedule] | None,
    ],
)
def test_a_field_of_a_type_that_cannot_be_given_is_refused(hint):
    odd = make_dataclass("Odd", [("value", hint)])
    with pytest.raises(TypeError, match=r"^Odd\.value: found the type .*, expected bool, int, "):
        parse_words("program odd", odd, (), ["--value", "a"])


def test_every_wrong_flag_of_a_line_is_named(run):
    code, _, err = run("build --stepz 3 4 --steps many --rates x --config no.yaml")
    assert code == 2
    assert err.splitlines() == [
        "program build: error: unknown flag --stepz; did you mean --steps?",
        "--steps: found 'many', expected a whole number",
        "--rates: found 'x', expected a number",
        "no configuration file no.yaml",
    ]


def test_a_name_far_off_is_not_proposed():
    assert suggest("epochs", ["optimizer.eps", "steps", "precision"]) == []


@pytest.mark.processes
@pytest.mark.parametrize("command", ["", "look"])
def test_help_is_a_command_too(run, command):
    shown = run(f"help {command}")
    assert shown[0] == 0
    assert run(f"{command} --help") == shown


KEYS = "keys and values, with keys such as"
WRONG_FILES = {
    "steps: 3\nstepz: 3\n": "2: unknown key stepz; did you mean steps?",
    "schedule:\n  warmup: 3\n": "2: unknown key schedule.warmup; the keys there are peak_lr",
    "schedule:\n  peak: 3\n": "2: unknown key schedule.peak; did you mean schedule.peak_lr?",
    "quux: 3\n": "1: unknown key quux; --help lists the keys",
    "\nsteps: many\n": "2: steps: found 'many', expected a whole number",
    "steps: [3]\n": "1: steps: found a list, expected a whole number",
    "steps:\n": "1: steps: found nothing, expected a whole number",
    "schedule: 3\n": "1: schedule: found '3', expected keys and values, with keys such as peak_lr",
    "rates: [0.1, x]\n": "1: rates[1]: found 'x', expected a number",
    "input: a\n": "1: input: found 'a', expected a list, such as [a, b]",
    "rates: [1]\nphases: [{peak_lr: x}]\n": "2: phases[0].peak_lr: found 'x', expected a number",
    "phases:\n- {peak: 1}\n": "2: unknown key phases[0].peak; did you mean phases[0].peak_lr?",
    "phases:\n- {}\n- {peak_lr: -1}\n": "3: peak_lr is -1.0; it must be 0 or more",
    "schedule:\n  peak_lr: -1\n": "2: peak_lr is -1.0; it must be 0 or more",
    "steps: 3\nsteps: 4\n": "2: steps stands there twice; leave one out",
    "[a, b]: 3\n": "1: found a list in the place of a key, expected a name",
    "options: {{a: 1}: 3}\n": "1: found keys and values in the place of a key, expected a name",
    "options: {a: 1,\n a: 2}\n": "2: options.a stands there twice; leave one out",
    "steps: 3\n  input: [a]\n": "2: not YAML: mapping values are not allowed here",
    "- steps\n": f"1: settings: found a list, expected {KEYS} dry_run, input, kind",
}


@pytest.mark.processes
@pytest.mark.parametrize(("text", "said"), WRONG_FILES.items())
def test_a_wrong_file_is_named_with_its_line(run, tmp_path, text, said):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    said = f"program build: error: {file}:{said}\n"
    assert run(f"build --output o --config {file}") == (2, "", said)


def test_anchors_merges_and_several_files(build, tmp_path):
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    options = "options: {7: 8, c: &c {x: 1, y: 2}, d: {<<: *c, y: 3}}\n"
    first.write_text(f"{options}schedule: {{peak_lr: 3}}\nsteps: 9\n")
    second.write_text("schedule: {}\nsteps: 8\nkind: 3\ninput: [no, 3]\n")
    settings = build(f"--config {first} --config={second} --output o")
    assert settings.options == {"7": 8, "c": {"x": 1, "y": 2}, "d": {"x": 1, "y": 3}}
    assert (settings.schedule, settings.steps, settings.kind) == (Schedule(3.0), 8, 3)
    assert settings.input == ["no", "3"]


def test_an_empty_file_changes_nothing(build, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("# steps: 9\n")
    assert build(f"--config {file} --output o") == Settings("o")


LOOK_HELP = """\
usage: program look FOLDER [flags]

Looks at something.

required:
  FOLDER                At what.

general:
  --config FILE         YAML file of settings that differ from the defaults, or
                        a recipe's name. Flags win over it.
  --help                Prints this.

flags:
  --deep [true|false]   How closely. (default: false)
"""


@pytest.mark.processes
def test_help_says_types_meanings_and_defaults(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run("look --help") == (0, LOOK_HELP, "")
    out = run("build --help")[1]
    assert "usage: program build --output TEXT [flags]\n" in out
    assert "  --kind CHOICE         Which. One of plain, googles, 3. (default: plain)\n" in out
    assert f"  --phases.peak_lr NUMBER\n{' ' * 24}Highest rate. (default: 0.0001)\n" in out


@pytest.mark.processes
def test_help_groups_flags_by_the_docstring_and_leaves_out_what_is_unused(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run_program("program", "Tests.", PIPELINE, ["vocab", "--help"]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if re.match(r"\S.*:$", line)] == [
        "required:", "general:", "input:", "filters (docs/input.md):", "vocabulary:", "running:",
    ]  # fmt: skip
    assert out.startswith("usage: program vocab --output TEXT [flags]\n\nLearns a vocabulary")
    assert "--seq_lens" not in out
    assert "  --sources.text_field TEXT\n" in out


def test_numbers_below_the_least_are_refused():
    with pytest.raises(ValueError, match=r"^deep is False; it must be at least 1$"):
        check_least(Look("here"), deep=1)
    check_least(Settings("o", limit=None), limit=1, steps=3)


@pytest.mark.processes
def test_what_follows_the_separator_is_passed_on(run):
    assert "['--runner=X']" in run("build --output o -- --runner=X")[1]
    assert run("look here -- --runner=X")[0] == 2


@pytest.mark.processes
def test_the_launchers_rank_is_ignored(run):
    assert "Look(folder='here', deep=False)" in run("--local_rank=1 look here")[1]


@pytest.mark.processes
def test_a_users_fault_is_one_line_from_rank_zero_only(run, monkeypatch):
    assert run("fail here") == (2, "", "program fail: error: FILE:3: found this, expected that\n")
    monkeypatch.setenv("RANK", "1")
    assert run("fail here") == (2, "", "")


@pytest.mark.processes
def test_help_lists_the_commands(run):
    assert "look   looks" in run("--help")[1]
    assert "unknown command 'dance'. The commands are build, look, fail" in run("dance")[2]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("closed", "arguments"),
    [("stdout", ["pipeline", "--help"]), ("stderr", ["trainer", "no-such-command"])],
)
def test_a_reader_that_leaves_ends_a_command_without_a_word(closed, arguments):
    """As `| head` and `2>&1 | head` leave: the exit code is that of SIGPIPE, as shells say it."""
    reader, writer = os.pipe()
    os.close(reader)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, closed: writer}
    ran = subprocess.run([sys.executable, "-m", *arguments], **streams, text=True, check=False)
    os.close(writer)
    assert (ran.stderr if closed == "stdout" else ran.stdout) == ""
    assert ran.returncode == 141


@pytest.mark.processes
def test_a_pipe_that_broke_elsewhere_is_an_error(commands, monkeypatch):
    """Such as the connection to an object store."""

    def lose_connection(_settings, _remainder):
        raise BrokenPipeError("connection lost")

    monkeypatch.setattr(sys.modules[__name__], "show", lose_connection)
    with pytest.raises(BrokenPipeError, match="connection lost"):
        run_program("program", "Tests.", commands, ["look", "here"])


@pytest.mark.processes
@pytest.mark.parametrize("words", ["pipeline build", "trainer pretrain"])
def test_help_imports_no_package_that_takes_time(words):
    room, command = words.split()
    code = (
        f"import sys, {room}.cli as c; sys.argv[1:] = ['{command}', '--help']; c.main(); "
        "print({'numpy', 'fsspec', 'pyarrow', 'torch', 'apache_beam'} & sys.modules.keys())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.endswith("set()\n")


def test_a_flag_of_other_commands_names_them(run):
    said = "program build: error: unknown flag --deep; look and fail take --deep\n"
    assert run("build --output o --deep") == (2, "", said)
