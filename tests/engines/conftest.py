"""Engines on this machine, a small corpus, and the root hash that every one of them must give."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

from pipeline.cli import COMMANDS
from pipeline.command_line.program import run_program
from pipeline.shards.dataset import open_dataset
from scripts.checkout import ROOT
from scripts.clusters.install import engines
from scripts.clusters.start import NAMES, start_cluster
from tests.datasets import write_corpus
from tests.engines.gate import SECONDS, Gate
from tests.ports import free_port

FLAGS = (
    "--vocab_size", "150", "--passes", "3", "--seq_lens", "64", "128", "--num_buckets", "8", "--part_bytes", "65536",
)  # fmt: skip


def require_installed(name):
    missing = [part for part in NAMES[name] if not engines()[part].is_installed]
    if name in ("flink", "spark") and not shutil.which("java"):
        missing.append("java")
    if missing:
        message = f"{', '.join(missing)} not installed: scripts/engines installs what {name} needs"
        if os.environ.get("BEAMBERT_REQUIRE_ENGINES"):
            pytest.fail(message)
        pytest.skip(message)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("engines-corpus"), 600)


@pytest.fixture(scope="session")
def local(corpus, tmp_path_factory):
    """The folder of a build in this machine's own processes."""
    output = tmp_path_factory.mktemp("engines-local") / "data"
    words = ["--input", corpus / "a.jsonl", "--output", output, "--workers", 1]
    config = ROOT / "configs/data/bert.yaml"
    command = [sys.executable, "-m", "pipeline", "build", "--config", config, *words, *FLAGS]
    subprocess.run([str(word) for word in command], cwd=ROOT, check=True, capture_output=True)
    return output


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    return Gate(tmp_path_factory.mktemp("gate"))


@pytest.fixture(scope="module")
def cluster(request, gate, tmp_path_factory):
    """The engine that the test's file names as ENGINE, until the file's last test."""
    name = request.module.ENGINE
    require_installed(name)
    with start_cluster(name, tmp_path_factory.mktemp(name), free_port, gate.folder) as started:
        yield started


@pytest.fixture
def build_and_verify(cluster, gate, corpus, local, tmp_path, capsys):
    """build_and_verify(exchange, num_processes, ended="") builds on the engine by the page's command.

    An undisturbed build learns its vocabulary; others are given it, as a job takes these engines
    ten seconds and more.

    So many processes write shards at a time. There one of them is killed, where `ended` is
    "worker"; then the same command runs once more, if the engine has not made up for the loss
    itself. Or Ctrl-C ends the "launcher": it has the engine cancel the job, and the same command
    runs once more. Every document is in the dataset.
    """

    def start(command):
        with (tmp_path / "said.txt").open("wb") as said:
            return subprocess.Popen(
                ["bash", "-c", command],
                cwd=tmp_path,
                env=os.environ | dict(cluster.environment),
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def describe():
        logs = sorted(path for path in cluster.folder.glob("*.log"))
        tails = [f"--- {path}:\n{path.read_text(errors='replace')[-2500:]}" for path in logs]
        return "\n".join(
            [f"--- the launcher:\n{(tmp_path / 'said.txt').read_text()[-4000:]}", *tails]
        )

    def interrupt(process):
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(SECONDS) == 130, describe()
        assert re.search(
            r"\nshards: job \S+ was told to end\n", (tmp_path / "said.txt").read_text()
        ), describe()

    def build(exchange, num_processes, ended=""):
        given = ("--vocab", str(local / "vocab.txt")) if ended else ()
        command = cluster.build_command(
            corpus / "a.jsonl", tmp_path / "data", exchange, *FLAGS, *given
        )
        print(command)
        gate.close()
        process = start(command)
        try:
            waiting = gate.wait_for(num_processes, process)
            assert len(waiting) >= num_processes, describe()
            if ended == "worker":
                os.kill(waiting[0], signal.SIGKILL)
            elif ended == "launcher":
                interrupt(process)
            gate.open()
            code = process.wait(SECONDS)
            if code and ended:
                process = start(command)
                code = process.wait(SECONDS)
            assert code == 0, describe()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        root_hashes = {
            open_dataset(str(each)).manifest.root_hash for each in (tmp_path / "data", local)
        }
        assert len(root_hashes) == 1
        verify = ["verify", str(tmp_path / "data"), "--deep", "true"]
        assert run_program("python -m pipeline", "Tests.", COMMANDS, verify) == 0, (
            capsys.readouterr()
        )

    return build


@pytest.fixture
def write_and_verify(cluster, gate, corpus, local, tmp_path):
    """Runs a pipeline of one's own on the engine: its dataset and its shards are those made here."""

    def write():
        here, there = tmp_path / "here", tmp_path / "there"
        words = shlex.split(cluster.build_command(corpus / "a.jsonl", there, "files"))
        own = words[words.index("--") + 1 :]
        if "--runner=PortableRunner" in own:
            own.append("--job_server_timeout=10000000")
        vocab = str(local / "vocab.txt")
        environment = os.environ | {"PYTHONPATH": str(ROOT)} | dict(cluster.environment)
        for python, output, arguments in ((sys.executable, here, []), (cluster.python, there, own)):
            program = [python, ROOT / "tests/engines/own_pipeline.py", corpus / "a.jsonl", output]
            command = [str(word) for word in (*program, vocab, *arguments)]
            ran = subprocess.run(
                command,
                env=environment,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
            assert ran.returncode == 0, ran.stderr[-4000:]
        hashes = {open_dataset(str(each)).manifest.root_hash for each in (here, there, local)}
        assert len(hashes) == 1
        shards = [
            {path.name: path.read_bytes() for path in tmp_path.joinpath(name).iterdir()}
            for name in ("here-samples", "there-samples")
        ]
        assert shards[0] == shards[1]
        assert len(shards[0]) >= 9

    return write
