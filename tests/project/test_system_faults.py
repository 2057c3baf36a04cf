"""What the operating system refuses is one line of any command, with the file and what to do."""

import errno
import json
import os
import subprocess

import pytest

from pipeline.command_line import program
from pipeline.command_line.program import Command, run_program
from pipeline.shards.dataset import open_dataset
from trainer.beambert import COMMANDS
from trainer.cli import ReportSettings
from trainer.runs.run_folder import RunFolder

RAISED = {
    "read-only": OSError(errno.EROFS, os.strerror(errno.EROFS), "/ro/run"),
    "full": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/ro/run"),
    "disk": OSError(errno.EIO, os.strerror(errno.EIO), "/ro/run"),
    "files": OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/ro/run"),
    "pathless": OSError(errno.EROFS, os.strerror(errno.EROFS)),
    "other": OSError("lost the disk"),
    "busy": TimeoutError("no answer"),
    "connection": ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
}
SAID = {
    "read-only": "/ro/run: Read-only file system; nothing can be written there: mount it for"
    " writing, or give another --output",
    "full": "/ro/run: No space left on device; free some space and run the same command again",
    "disk": "/ro/run: Input/output error; the disk fails: look at the system's log",
    "files": "/ro/run: Too many open files; raise the limit of open files, such as by"
    " `ulimit -n 4096`",
    "pathless": "Read-only file system; nothing can be written there: mount it for writing, or"
    " give another --output",
    "other": "lost the disk",
    "busy": "no answer",
    "connection": "Connection refused",
}


@pytest.fixture
def raising(monkeypatch):
    """raising(error): the commands of a program whose only command raises an error."""

    def fail(error):
        def run(*_):
            raise error

        monkeypatch.setattr(
            program, "load", lambda dotted: ReportSettings if dotted == "settings" else run
        )
        return {"report": Command("reports", "settings", "function", ("runs",))}

    return fail


@pytest.mark.parametrize("name", RAISED)
def test_every_error_of_the_system_is_one_line(raising, capsys, name):
    assert run_program("prog", "Tests.", raising(RAISED[name]), ["report", "a"]) == 2
    assert capsys.readouterr().err == f"prog report: error: {SAID[name]}\n"


def test_a_disk_that_fails_for_one_rank_is_said_by_that_rank(raising, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    assert run_program("prog", "Tests.", raising(RAISED["disk"]), ["report", "a"]) == 2
    assert capsys.readouterr().err == f"prog report: error on rank 3: {SAID['disk']}\n"
    assert run_program("prog", "Tests.", raising(ValueError("no")), ["report", "a"]) == 2
    assert capsys.readouterr().err == ""


def test_a_fault_of_the_program_keeps_its_traceback(raising):
    with pytest.raises(RuntimeError):
        run_program("prog", "Tests.", raising(RuntimeError("ours")), ["report", "a"])


@pytest.fixture
def read_only(tmp_path):
    """A folder on a read-only mount; skipped where this user may not mount."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", folder]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.engines
def test_no_command_shows_a_traceback_on_a_read_only_mount(
    make_dataset, read_only, tmp_path, capfd
):
    data = make_dataset(tmp_path / "data", ((20, 9), (13, 17)))
    text = tmp_path / "a.jsonl"
    text.write_text(json.dumps({"text": "A river. A hill."}) + "\n")
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.metrics.write_text(json.dumps({"step": 1, "split": "train", "mlm_loss": 2.0}) + "\n")
    length = open_dataset(str(data)).manifest.groups[0].seq_len
    phases = f"[{{seq_len: {length}, global_batch: 8, steps: 1, peak_lr: 1e-4}}]"
    model = ["--model.preset", "tiny", "--model.overrides.max_position_embeddings", length]
    commands = [
        ["build", "--input", text, "--output", f"{read_only}/out", "--workers", 1],
        ["report", run.path, "--output", f"{read_only}/page.html"],
        ["pretrain", "--data", data, "--output", f"{read_only}/run", "--phases", phases, *model],
    ]
    for words in commands:
        code = run_program("beambert", "Tests.", COMMANDS, [str(word) for word in words])
        said = capfd.readouterr().err.splitlines()
        assert (code, [line for line in said if line.startswith("beambert")]) == (2, said[-1:]), (
            words
        )
        assert "Read-only file system" in said[-1], words
        assert f"{read_only}" in said[-1], words
