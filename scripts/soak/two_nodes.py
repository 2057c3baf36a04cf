"""Trains on two nodes that share a wire: namespaces with names, addresses and sshd of their own.

    python -m scripts.soak.two_nodes --output scripts/soak/results/DATE-two-nodes-COMMIT.json

One small run is made four times: by `deepspeed --hostfile` over pdsh and ssh, by one torchrun a
node, by one torchrun on one node, and the doctor looks at both nodes. Losses and gradient norms
must be equal to the last bit. Prints one JSON line. Linux and root only; needs iproute2,
openssh-server, openssh-client and pdsh. What it makes lies in a temporary folder and in two
namespaces, and is removed at the end.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from scripts.checkout import ROOT, describe_soak, make_parser

BIN = Path(sys.executable).parent
PROGRAMS = ("ip", "sshd", "ssh", "ssh-keygen", "pdsh", "unshare")
NODES = {"bert-node-a": "10.77.0.1", "bert-node-b": "10.77.0.2"}
LINK = "bertlink"
LIMIT_SECONDS = 600
CONFIG = {
    "phases": [{"seq_len": 16, "global_batch": 12, "steps": 8, "peak_lr": 0.02, "warmup_steps": 2}],
    "model": {
        "preset": "tiny",
        "overrides": {"num_layers": 2, "hidden_size": 24, "num_heads": 3, "intermediate_size": 40},
    },
    "micro_tokens": 48,
}


def main() -> int:
    """Runs everything; exit code 1 where something was not as it should be."""
    parser = make_parser(__doc__)
    parser.add_argument("--output", type=Path, help="JSON file for the result")
    own = parser.parse_args()
    missing = [name for name in PROGRAMS if shutil.which(name, path=_search_path()) is None]
    if missing or os.geteuid() != 0:
        parser.error(f"needs root and {', '.join(missing) or 'nothing else'}")
    with (
        tempfile.TemporaryDirectory(prefix="beambert-two-nodes-") as name,
        _nodes(Path(name)) as nodes,
    ):
        result = _compare(nodes)
    print(json.dumps(result))
    if own.output:
        own.output.parent.mkdir(parents=True, exist_ok=True)
        own.output.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if result["findings"] else 0


class Nodes:
    """The two nodes, and how commands are run on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        from tests.trainer.tiny_dataset import write_tiny_dataset

        write_tiny_dataset(folder / "data", instances=120)
        (folder / "run.yaml").write_text(yaml.safe_dump(CONFIG))
        (folder / "hosts").write_text("".join(f"{address} slots=1\n" for address in NODES.values()))
        (folder / "environment").write_text(f"OMP_NUM_THREADS=1\nGLOO_SOCKET_IFNAME={LINK}\n")

    def arguments(self, command: str, output: str) -> list[str]:
        """Returns the arguments of a command of the trainer."""
        config = ["--config", f"{self.folder}/run.yaml"] if command == "pretrain" else []
        return [
            "trainer",
            command,
            *config,
            "--data",
            f"{self.folder}/data",
            "--output",
            f"{self.folder}/{output}",
        ]

    def run(self, name: str, *commands: Sequence[str]) -> dict[str, Any]:
        """Runs a command for each node, beginning with the first."""
        environment = {
            **{
                key: value
                for key, value in os.environ.items()
                if not key.startswith(("RANK", "WORLD_SIZE", "LOCAL_"))
            },
            "PATH": f"{self.folder}/bin{os.pathsep}{_search_path()}",
            "PYTHONPATH": str(ROOT),
            "DS_ENV_FILE": f"{self.folder}/environment",
            "OMP_NUM_THREADS": "1",
        }
        began = time.monotonic()
        processes = []
        for index, command in enumerate(commands):
            place = [] if name == "one node" else ["ip", "netns", "exec", list(NODES)[index]]
            own = environment | ({"GLOO_SOCKET_IFNAME": LINK} if place else {})
            log = (self.folder / f"{name}-{index}.log").open("w")
            processes.append(
                subprocess.Popen(
                    [*place, *command],
                    cwd=self.folder,
                    env=own,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
        try:
            codes = [process.wait(timeout=LIMIT_SECONDS) for process in processes]
        finally:
            for process in processes:
                process.kill()
        logs = [(self.folder / f"{name}-{index}.log").read_text() for index in range(len(commands))]
        return {
            "codes": codes,
            "seconds": round(time.monotonic() - began, 1),
            "printed": "\n".join(logs),
        }

    def losses(self, output: str) -> list[tuple[float, float]]:
        """Loss and gradient norm of every step."""
        path = self.folder / output / "metrics.jsonl"
        rows = (
            [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
        )
        return [(row["loss"], row["grad_norm"]) for row in rows if row["split"] == "train"]


def _compare(nodes: Nodes) -> dict[str, Any]:
    deepspeed = [
        str(BIN / "deepspeed"),
        "--hostfile",
        f"{nodes.folder}/hosts",
        "--master_port",
        "29511",
        "--module",
    ]
    address = ["--master_addr", next(iter(NODES.values())), "--master_port", "29512"]
    torchrun = [str(BIN / "torchrun"), "--nproc_per_node"]
    two = [
        [*torchrun, "1", "--nnodes", "2", "--node_rank", str(rank), *address, "-m"]
        for rank in range(2)
    ]
    ran = {
        "doctor over pdsh": nodes.run(
            "doctor over pdsh", [*deepspeed, *nodes.arguments("doctor", "run")]
        ),
        "pdsh": nodes.run("pdsh", [*deepspeed, *nodes.arguments("pretrain", "pdsh")]),
        "torchrun": nodes.run(
            "torchrun", *([*each, *nodes.arguments("pretrain", "torchrun")] for each in two)
        ),
        "one node": nodes.run(
            "one node", [*torchrun, "2", "-m", *nodes.arguments("pretrain", "one")]
        ),
    }
    losses = {
        name: nodes.losses(output) for name, output in (("pdsh", "pdsh"), ("torchrun", "torchrun"))
    }
    expected = nodes.losses("one")
    findings = [
        f"{name}: exit codes {each['codes']}: {each['printed'][-2000:]}"
        for name, each in ran.items()
        if any(each["codes"])
    ]
    findings += [
        f"{name}: losses {found} are not {expected}"
        for name, found in losses.items()
        if found != expected
    ]
    if "2 rank(s) of 2 node(s)" not in ran["doctor over pdsh"]["printed"]:
        findings.append(
            f"the doctor did not see two nodes: {ran['doctor over pdsh']['printed'][-2000:]}"
        )
    return {
        **describe_soak("two_nodes"),
        "steps": len(expected),
        "seconds": {name: each["seconds"] for name, each in ran.items()},
        "losses_equal_to_the_last_bit": {name: found == expected for name, found in losses.items()},
        "doctor": [
            line
            for line in ran["doctor over pdsh"]["printed"].splitlines()
            if "bert-node-" in line or "all-" in line
        ],
        "findings": findings,
    }


@contextlib.contextmanager
def _nodes(folder: Path) -> Iterator[Nodes]:
    """Makes two network namespaces, joined by a link.

    Each namespace has an sshd under its own name, and accepts the key that the other one uses.
    """
    daemons: list[subprocess.Popen[bytes]] = []
    _write_ssh(folder)
    try:
        for name in NODES:
            _do("ip", "netns", "add", name)
        first, second = NODES
        _do(*f"ip link add {LINK} netns {first} type veth peer name {LINK} netns {second}".split())
        for name, address in NODES.items():
            _do("ip", "-n", name, "address", "add", f"{address}/24", "dev", LINK)
            for link in ("lo", LINK):
                _do("ip", "-n", name, "link", "set", link, "up")
            daemons.append(_start_sshd(folder, name))
        _wait_for_sshd(folder)
        yield Nodes(folder)
    finally:
        for daemon in daemons:
            daemon.terminate()
            daemon.wait()
        for name in NODES:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _write_ssh(folder: Path) -> None:
    """Writes a key, the settings of clients and servers, and a program `ssh` that uses them."""
    _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{folder}/key")
    shutil.copy(folder / "key.pub", folder / "authorized_keys")
    (folder / "ssh_config").write_text(
        f"IdentityFile {folder}/key\nUserKnownHostsFile {folder}/known_hosts\n"
        "StrictHostKeyChecking no\nLogLevel ERROR\nConnectTimeout 5\n"
    )
    (folder / "sshd_config").write_text(
        f"HostKey {folder}/key\nAuthorizedKeysFile {folder}/authorized_keys\nPidFile none\n"
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
    )
    (folder / "bin").mkdir()
    program = shutil.which("ssh", path=_search_path())
    (folder / "bin/ssh").write_text(f'#!/bin/sh\nexec {program} -F {folder}/ssh_config "$@"\n')
    (folder / "bin/ssh").chmod(0o755)


def _start_sshd(folder: Path, name: str) -> "subprocess.Popen[bytes]":
    Path("/run/sshd").mkdir(exist_ok=True)  # where it separates its privileges
    sshd = shutil.which("sshd", path=_search_path())
    start = f"hostname {name} && exec {sshd} -D -e -f {folder}/sshd_config"
    log = (folder / f"sshd-{name}.log").open("w")
    command = ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", start]
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def _wait_for_sshd(folder: Path) -> None:
    first = next(iter(NODES))
    for name, address in NODES.items():
        for attempt in range(20):
            place = ["ip", "netns", "exec", first]
            command = [*place, f"{folder}/bin/ssh", f"root@{address}", "hostname"]
            found = subprocess.run(command, capture_output=True, text=True, check=False)
            if found.stdout.strip() == name:
                break
            time.sleep(0.1 * attempt)
        else:
            raise RuntimeError(
                f"no sshd at {address}: {found.stderr} {(folder / f'sshd-{name}.log').read_text()}"
            )


def _search_path() -> str:
    return os.pathsep.join([str(BIN), os.environ["PATH"], "/usr/sbin", "/sbin"])


def _do(*command: str) -> None:
    subprocess.run(command, check=True, env=os.environ | {"PATH": _search_path()})


def _output(*command: str) -> str:
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
