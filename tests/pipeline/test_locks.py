"""Only one build writes into an output at a time, and one that was killed locks nothing."""

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from pipeline.stages import build
from pipeline.storage.locks import LOCK, locked_folder
from pipeline.transforms.tokens import finish_build
from tests.pipeline.programs import run
from trainer.runs.continuing import lock_folder

COMMANDS = ("build", "vocab", "tokens", "shards")


def test_a_folder_is_locked_for_others_until_the_block_is_left(tmp_path):
    folder = tmp_path / "data"
    with locked_folder(folder, LOCK, 0):
        assert (folder / LOCK).exists()
        for is_shared in (False, True):
            with (
                pytest.raises(FileExistsError, match=f"{folder} is in use by another job"),
                locked_folder(folder, LOCK, 0, is_shared=is_shared),
            ):
                pass
    assert list(folder.iterdir()) == []


def test_those_that_only_read_lock_a_folder_together(tmp_path):
    with locked_folder(tmp_path, LOCK, 0, is_shared=True):
        with locked_folder(tmp_path, LOCK, 0, is_shared=True):
            pass
        with pytest.raises(FileExistsError), locked_folder(tmp_path, LOCK, 0):
            pass
    with locked_folder(tmp_path, LOCK, 0):
        pass


@pytest.mark.parametrize("lost", ["file", "folder"])
def test_a_lock_that_was_removed_meanwhile_is_taken_anew(lost, tmp_path, monkeypatch):
    """The job before may remove the file, or a refused run its folder, that the next one opened."""
    folder = tmp_path / "run"
    remove = (folder / LOCK).unlink if lost == "file" else partial(shutil.rmtree, folder)
    for take in (partial(locked_folder, folder, LOCK, 0), partial(lock_folder, folder, 0)):
        flock, calls = build_flock(remove)
        monkeypatch.setattr("pipeline.storage.locks.fcntl.flock", flock)
        with take():
            assert (folder / LOCK).exists()
            assert len(calls) == 2


def build_flock(remove):
    """An flock during whose first call the file is removed, and the list of its calls."""
    calls = []

    def flock(*_):
        if not calls:
            remove()
        calls.append(None)

    return flock, calls


@pytest.mark.processes
def test_a_lock_of_a_killed_job_locks_nothing(tmp_path):
    code = (
        "import os, signal; from pathlib import Path\n"
        "from pipeline.storage.locks import locked_folder\n"
        f"with locked_folder(Path({str(tmp_path)!r}), {LOCK!r}, 0):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False)
    assert (tmp_path / LOCK).exists()
    with locked_folder(tmp_path, LOCK, 0):
        pass


@pytest.fixture(scope="module")
def built(corpus, vocab_file, tmp_path_factory):
    """A dataset whose encoded documents are elsewhere, and the words of its commands."""
    folder = tmp_path_factory.mktemp("built")
    words = ["--input", corpus, "--output", folder / "data", "--tokens", folder / "tokens"]
    words += ["--vocab", vocab_file, "--workers", 1, "--passes", 1, "--seq_lens", 64]
    assert run("build", *words) == 0
    return folder, words


@pytest.mark.processes
@pytest.mark.parametrize("place", ["data", "tokens"])
def test_a_second_build_on_a_folder_is_refused(place, built, vocab_file, monkeypatch, capsys):
    monkeypatch.setattr(build, "LOCK_SECONDS", 0)
    folder, words = built
    output, tokens = (str(folder / name) for name in ("data", "tokens"))
    with locked_folder(folder / place, LOCK, 0):
        for command in COMMANDS:
            assert run(command, *words) == 2
            assert f"{folder / place} is in use by another job" in capsys.readouterr().err
        with pytest.raises(FileExistsError, match="is in use by another job"):
            finish_build(output, str(vocab_file), tokens=tokens, passes=1, seq_lens=[64])
    for command in COMMANDS:
        assert run(command, *words) == 0
    assert not (folder / "data" / LOCK).exists()
