"""One run started in two ways: two nodes by `deepspeed --no_ssh`, one process by nothing.

The two nodes are real ones but for their address: each has a launcher of its own and they meet over
TCP.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import rows_of, write_config

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def start(command, folder, name):
    """A process whose output goes to a file; without any launcher's environment."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    }
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {
        **kept,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }
    with (folder / f"{name}.log").open("w") as log:
        return subprocess.Popen(
            list(map(str, command)), cwd=ROOT, env=environment, stdout=log, stderr=log
        )


def wait(processes, folder):
    """Waits for all of them; every one must end well."""
    try:
        codes = {name: process.wait(timeout=600) for name, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
    assert set(codes.values()) == {0}, {
        name: (folder / f"{name}.log").read_text()[-3000:] for name in codes
    }


def losses(run):
    return [(row["loss"], row["grad_norm"]) for row in rows_of(run)]


@pytest.mark.engines
def test_two_nodes_train_as_one(tmp_path):
    data = write_tiny_dataset(tmp_path / "data", instances=120)
    (tmp_path / "hosts").write_text("node-a slots=1\nnode-b slots=1\n")

    def pretrain(name):
        return ["trainer", *write_config(tmp_path / name, data)]

    port = free_port()
    nodes = {}
    for rank in range(2):
        place = ["--node_rank", rank, "--master_addr", "127.0.0.1", "--master_port", port]
        launcher = [BIN / "deepspeed", "--hostfile", tmp_path / "hosts", "--no_ssh", *place]
        nodes[f"node{rank}"] = start(
            [*launcher, "--module", *pretrain("two-nodes")], tmp_path, f"node{rank}"
        )
    wait(nodes, tmp_path)
    alone = [sys.executable, "-X", "importtime", "-m", *pretrain("alone")]
    wait({"alone": start(alone, tmp_path, "alone")}, tmp_path)
    imported = {
        line.rpartition("|")[2].strip()
        for line in (tmp_path / "alone.log").read_text().splitlines()
    }
    assert "deepspeed" in imported
    assert "torch._dynamo" not in imported, "torch's compiler, which takes a second of a start"

    two, alone = (losses(tmp_path / name) for name in ("two-nodes", "alone"))
    assert len(two) == 4
    assert two == [pytest.approx(pair, rel=1e-5) for pair in alone]
    facts = json.loads((tmp_path / "two-nodes" / "run.json").read_text())
    assert facts["launches"][0]["world_size"] == 2
