"""The command as a person types it, killed, and under the `deepspeed` launcher."""

import os
import re
import signal
import socket
import subprocess
import time

import pytest

from tests.finetune.test_finetune import SUBMITTED, results_of, same_files
from tests.finetune.tiny_model import write_pretrained, write_sst2
from tests.loaded_python import Program, run_python
from tests.ports import free_port
from tests.trainer.two_ranks import BIN, launchers_environment, run_nodes, start_nodes

pytestmark = pytest.mark.engines

GIVEN = (
    "--task sst2 --model model --train train.tsv --validation dev.tsv --test test.tsv --seq_len 16"
    " --search_global_batch 8 --search_peak_lr 5e-3 --search_epochs 3 --search_seeds 0 1"
    " --micro_tokens 64 --output"
)
COMMAND = ["finetune", *GIVEN.split()]

# Every rank waits for ever within the first step of the second run.
WAITING = """
import os, sys, time
from pathlib import Path
from trainer.cli import main
from trainer.finetune import run
train_run, names = run.train_run, []
def train_or_wait(recipe, prepared, ranks, tell_step):
    def tell_or_wait():
        tell_step()
        Path(f"run-{len(names)}-{os.environ.get('RANK')}").touch()
        while len(names) == 2:
            time.sleep(0.05)
    names.append(recipe.name)
    return train_run(recipe, prepared, ranks, tell_or_wait)
run.train_run = train_or_wait
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def files(tmp_path):
    write_sst2(tmp_path)
    write_pretrained(tmp_path / "model")


def test_two_ranks_of_the_launcher_give_what_one_process_that_was_killed_gives(tmp_path):
    """The one process is killed in its second run, and goes on."""
    (tmp_path / "waiting.py").write_text(WAITING)
    with Program(["waiting.py", *COMMAND, "alone"], cwd=tmp_path) as killed:
        while not list(tmp_path.glob("run-2-*")):
            assert killed.poll() is None, "it ended before its first run was finished"
            time.sleep(0.05)
    assert len(list(tmp_path.glob("alone/runs/*.json"))) == 1
    assert not (tmp_path / "alone/results.json").exists()
    first = run_python(["-m", "trainer", *COMMAND, "alone"], cwd=tmp_path)
    launcher = [BIN / "deepspeed", "--num_gpus", "2", "--master_port", str(free_port())]
    words = [*launcher, "--module", "trainer", *COMMAND, "both"]
    places = {"cwd": tmp_path, "env": launchers_environment() | {"CUDA_VISIBLE_DEVICES": ""}}
    second = subprocess.run(words, **places, capture_output=True, text=True, check=False)
    for ran, output in ((first, "alone"), (second, "both")):
        assert ran.returncode == 0, ran.stderr
        assert ("1 of 2 runs were finished before" in ran.stdout) == (output == "alone")
        assert f"{output}: results.json, predictions, and the best model in" in ran.stdout
        assert re.search(r"epochs3-seed1: step (\d+)/\1 of all runs, ETA 0 s\n", ran.stderr)
        assert "\r" not in ran.stderr
    alone, both = results_of(tmp_path / "alone"), results_of(tmp_path / "both")
    losses = [[run.pop("train_loss") for run in results["runs"]] for results in (alone, both)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert [run["metrics"] for run in alone["runs"]] == [run["metrics"] for run in both["runs"]]
    assert same_files(tmp_path / "alone", tmp_path / "both", SUBMITTED)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_ctrl_c_is_one_line(tmp_path, num_ranks):
    (tmp_path / "waiting.py").write_text(WAITING)
    with start_nodes([(["waiting.py", *COMMAND, "out"], num_ranks)], tmp_path) as ranks:
        while len(list(tmp_path.glob("run-2-*"))) < num_ranks:
            assert all(rank.poll() is None for rank in ranks), ranks[0].said()
            time.sleep(0.05)
        for rank in ranks:
            os.kill(rank.pid, signal.SIGINT)
        ended = [rank.wait() for rank in ranks]
    said = "".join(each.stdout + each.stderr for each in ended)
    assert {each.returncode for each in ended} == {130}, said
    assert said.count("interrupted\n") == 1
    assert "trainer/" not in said, "a traceback of ours"
    assert len(list(tmp_path.glob("out/runs/*.json"))) == 1


def test_a_bad_file_is_named_by_one_rank(tmp_path):
    with (tmp_path / "dev.tsv").open("a") as file:
        file.write("bad\t0\textra\n")
    ended = run_nodes([(["-m", "trainer", *COMMAND, "none"], 2)], cwd=tmp_path)
    assert [each.returncode for each in ended] == [2, 2]
    said = "".join(each.stderr for each in ended)
    assert said.count("dev.tsv:22: 3 columns, expected 2 (sentence, label)") == 1
    assert "Traceback" not in said
    assert not (tmp_path / "none/results.json").exists()


def test_a_port_that_another_job_has_is_named(tmp_path):
    with socket.create_server(("", 0)) as other_job:
        port = str(other_job.getsockname()[1])
        rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ran = run_python(["-m", "trainer", *COMMAND, "none"], cwd=tmp_path, **rank, **place)
    assert ran.returncode == 2
    assert f"error: port {port}, where the ranks were to meet, is in use" in ran.stderr
    assert "Traceback" not in ran.stderr
