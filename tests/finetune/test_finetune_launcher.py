"""The command under the `deepspeed` launcher, as a person types it, against one process."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.finetune.test_finetune import FLAGS, SUBMITTED, WAITING, results_of, same_files
from tests.finetune.tiny_data import write_sst2
from tests.finetune.tiny_model import write_pretrained
from tests.loaded_python import run_python
from tests.ports import free_port

pytestmark = pytest.mark.engines

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
ALONE = (BIN / "python", "-m")


def run_as_typed(command, folder, environment):
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def run_alone(command, folder, environment):
    """Without a launcher, as a fork."""
    return run_python(command[1:], cwd=folder, **environment)


def finetune(launcher, folder, output, program="trainer", start=run_as_typed, **variables):
    """`LAUNCHER trainer finetune ...` in a folder with train.tsv, dev.tsv, test.tsv and model/."""
    files = "--task sst2 --model model --train train.tsv --validation dev.tsv --test test.tsv"
    given = [*files.split(), "--output", output, *FLAGS.split(), "--search_global_batch", "8"]
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        **variables,
    }
    return start([*launcher, program, "finetune", *given], folder, environment)


@pytest.fixture
def deepspeed():
    return (BIN / "deepspeed", "--num_gpus", "2", "--master_port", str(free_port()), "--module")


def test_two_ranks_of_the_deepspeed_launcher_give_what_one_process_gives(tmp_path, deepspeed):
    write_sst2(tmp_path)
    write_pretrained(tmp_path / "model")
    ways = ((ALONE, "alone", run_alone), (deepspeed, "together", run_as_typed))
    for launcher, output, start in ways:
        ran = finetune(launcher, tmp_path, output, start=start)
        assert ran.returncode == 0, ran.stderr
        assert f"{output}: results.json, predictions, and the best model in" in ran.stdout
    alone, together = results_of(tmp_path / "alone"), results_of(tmp_path / "together")
    losses = [[run.pop("train_loss") for run in results["runs"]] for results in (alone, together)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert [run["metrics"] for run in alone["runs"]] == [run["metrics"] for run in together["runs"]]
    assert same_files(tmp_path / "alone", tmp_path / "together", SUBMITTED)
    assert together["best"]["metrics"]["dev"]["accuracy"] == 1.0


@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "deepspeed"])
def test_ctrl_c_keeps_finished_runs(tmp_path, deepspeed, is_alone):
    write_sst2(tmp_path)
    write_pretrained(tmp_path / "model")
    (tmp_path / "waiting.py").write_text(WAITING)
    launcher = [BIN / "python"] if is_alone else deepspeed[:-1]
    log = tmp_path / "log"

    def start(command, folder, environment):
        with log.open("wb") as said:
            place = {"cwd": folder, "env": environment, "start_new_session": True}
            return subprocess.Popen(command, stdout=said, stderr=said, **place)

    process = finetune(launcher, tmp_path, "out", program="waiting.py", start=start)
    wait_until(lambda: (tmp_path / "run-2").exists() or process.poll() is not None, log)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(600) == (130 if is_alone else -2)
    wait_until(lambda: "interrupted" in log.read_text(), log)
    said = log.read_text()
    assert said.count("interrupted\n") == 1
    assert "trainer/" not in said, "a traceback of ours"
    ran = finetune(ALONE, tmp_path, "out", start=run_alone)
    assert "1 of 2 runs were finished before" in ran.stdout
    assert ran.returncode == 0, ran.stderr


def wait_until(condition, log, seconds=600):
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, log.read_text()
        time.sleep(0.05)


def test_a_bad_file_is_named_once_under_the_launcher(tmp_path, deepspeed):
    write_sst2(tmp_path)
    write_pretrained(tmp_path / "model")
    with (tmp_path / "dev.tsv").open("a") as file:
        file.write("bad\t0\textra\n")
    ran = finetune(deepspeed, tmp_path, "none")
    assert ran.returncode != 0
    assert ran.stderr.count("dev.tsv:22: 3 columns, expected 2 (sentence, label)") == 1
    assert "Traceback" not in ran.stderr
    assert not (tmp_path / "none/results.json").exists()


def test_a_port_that_another_job_has_is_named(tmp_path):
    with socket.create_server(("", 0)) as other_job:
        port = str(other_job.getsockname()[1])
        rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ran = finetune(ALONE, tmp_path, "none", start=run_alone, **rank, **place)
    assert ran.returncode == 2
    assert f"error: port {port}, where the ranks were to meet, is in use" in ran.stderr
    assert "deepspeed --master_port 29501" in ran.stderr
    assert "Traceback" not in ran.stderr
