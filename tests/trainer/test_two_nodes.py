"""Runs of two nodes against one: started by `deepspeed --no_ssh`, and with no folder in common."""

import dataclasses
import json
import subprocess
import sys

import pytest

from tests.ports import free_port
from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import OURS, launch, meeting, rows_of, write_config
from tests.trainer.two_ranks import BIN, ROOT, launchers_environment, run_nodes
from trainer.process.stopping import STOPPED
from trainer.settings import Phase
from trainer.watch.recorder import MEASURED

pytestmark = pytest.mark.engines
STEPS, BATCH, STOP_AFTER = 12, 12, 5


def run_together(commands, folder):
    """Runs all of them, every one must end well; what each said."""
    logs = [folder / f"{number}.log" for number in range(len(commands))]
    processes = []
    for command, log in zip(commands, logs, strict=True):
        with log.open("w") as file:
            words, environment = list(map(str, command)), launchers_environment()
            started = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=file, stderr=file)
        processes.append(started)
    try:
        codes = [process.wait(timeout=600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    said = [log.read_text() for log in logs]
    assert set(codes) == {0}, [text[-3000:] for text in said]
    return said


def test_two_nodes_train_as_one(tmp_path):
    data = write_tiny_dataset(tmp_path / "data", instances=120)
    (tmp_path / "hosts").write_text("node-a slots=1\nnode-b slots=1\n")

    def pretrain(name):
        return ["trainer", *write_config(tmp_path / name, data)]

    port, nodes = free_port(), []
    for rank in range(2):
        place = ["--node_rank", rank, "--master_addr", "127.0.0.1", "--master_port", port]
        launcher = [BIN / "deepspeed", "--hostfile", tmp_path / "hosts", "--no_ssh", *place]
        nodes.append([*launcher, "--module", *pretrain("two-nodes")])
    run_together(nodes, tmp_path)
    alone = [sys.executable, "-X", "importtime", "-m", *pretrain("alone")]
    [said] = run_together([alone], tmp_path)
    imported = {line.rpartition("|")[2].strip() for line in said.splitlines()}
    assert "deepspeed" in imported
    assert "torch._dynamo" not in imported, "torch's compiler, which takes a second of a start"

    two, alone = (rows_of(tmp_path / name) for name in ("two-nodes", "alone"))
    assert len(two) == 4
    for key in ("loss", "grad_norm"):
        assert [row[key] for row in two] == pytest.approx([row[key] for row in alone], rel=1e-5)
    facts = json.loads((tmp_path / "two-nodes" / "run.json").read_text())
    assert facts["launches"][0]["world_size"] == 2


def last_checkpoint(where):
    """Name, sizes and hashes."""
    marker = max(where.glob("checkpoints/step-*/COMMITTED"))
    return marker.parent.name, json.loads(marker.read_bytes())["files"]


def test_they_train_stop_and_go_on_as_one_node_even_when_they_change_places(tmp_path):
    folder, phase = tmp_path, dataclasses.asdict(Phase(16, BATCH, STEPS, 0.003, warmup_steps=2))
    data, url = write_tiny_dataset(folder / "data"), ("--checkpoint.url", f"file://{folder}/url")

    def pretrain(folder, node, *flags):
        (folder / node).mkdir(exist_ok=True)
        return [*write_config(folder / node / "run", data, phases=[phase]), *flags]

    def kept(run):
        return rows_of(run, left_out=MEASURED)

    launch(OURS, pretrain(folder, "alone"), 3)
    stop, places = meeting("SIGUSR1", STOP_AFTER), (("a", 1), ("b", 2))
    stopped = run_nodes([([*stop, *pretrain(folder, node, *url)], size) for node, size in places])
    assert [each.returncode for each in stopped] == [STOPPED] * 3, stopped[0].stderr
    saved, _ = last_checkpoint(folder / "url")
    step = int(saved.removeprefix("step-"))
    assert STOP_AFTER <= step < STEPS
    assert not list((folder / "b/run/checkpoints").iterdir()), "pieces that were uploaded"
    places = (("b", 2), ("a", 1))
    again = run_nodes([([*OURS, *pretrain(folder, node, *url)], size) for node, size in places])
    assert [each.returncode for each in again] == [0] * 3, [each.stderr for each in again]
    assert f"continuing after step {step}" in again[0].stderr + again[0].stdout
    assert kept(folder / "b/run") == kept(folder / "alone/run")
    assert [row["step"] for row in kept(folder / "b/run")] == list(range(1, STEPS + 1))
    url, one, two = (last_checkpoint(folder / name) for name in ("url", "alone/run", "b/run"))
    assert url == one == two
    assert last_checkpoint(folder / "a/run")[0] == saved, "of when it was first"
