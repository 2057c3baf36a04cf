"""Engines on this machine, a small corpus, and the root hash that every one of them must give."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.checkout import ROOT
from scripts.clusters.install import engines
from scripts.clusters.start import NAMES, start_cluster
from tests.datasets import write_corpus
from tests.engines.gate import SECONDS, Gate
from tests.pipeline.programs import root_hash, run
from tests.ports import free_port

SIZES = ("--seq_lens", "64", "128", "--num_buckets", "8", "--part_bytes", "65536")
LEARNED, FLAGS = ("--vocab_size", "150"), ("--passes", "2", *SIZES)


def require_installed(name):
    missing = [part for part in NAMES[name] if not engines()[part].is_installed]
    if name == "flink" and not shutil.which("java"):
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
    words += [*LEARNED, *FLAGS]
    command = [sys.executable, "-m", "pipeline", "build", "--config", config, *words]
    subprocess.run([str(word) for word in command], cwd=ROOT, check=True, capture_output=True)
    return output


WORDS = (
    "--max_random_next",
    "1",
    "--words",
    "whitespace",
    "--lower_case",
    "false",
    "--passes",
    "1",
    "--seq_lens",
    "64",
)


@pytest.fixture(scope="session")
def local_words(corpus, tmp_path_factory):
    """The folder of a build here of words as they stand."""
    output = tmp_path_factory.mktemp("engines-words") / "data"
    words = ["--input", corpus / "a.jsonl", "--output", output, "--workers", 1]
    command = [sys.executable, "-m", "pipeline", "build", *words, *LEARNED, *WORDS]
    subprocess.run([str(word) for word in command], cwd=ROOT, check=True, capture_output=True)
    return output


@pytest.fixture
def build_words(cluster, gate, corpus, local_words, tmp_path):
    """build_words() builds words as they stand on the engine, with the vocabulary made here."""

    def build():
        gate.close()
        gate.open()
        output = tmp_path / "words"
        vocab = ("--vocab", f"{local_words}/vocab.txt")
        command = cluster.build_command(corpus / "a.jsonl", output, "auto", *vocab, *WORDS)
        env = os.environ | dict(cluster.environment)
        subprocess.run(["bash", "-c", command], cwd=tmp_path, env=env, check=True, timeout=SECONDS)
        assert root_hash(output) == root_hash(local_words)

    return build


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    return Gate(tmp_path_factory.mktemp("gate"))


@pytest.fixture(scope="module")
def engine(gate, tmp_path_factory):
    """engine(name) runs until the next one is asked for, or the last test."""
    running = {}
    with contextlib.ExitStack() as stack:

        def start(name):
            require_installed(name)
            if name not in running:
                stack.close()
                running.clear()
                folder = tmp_path_factory.mktemp(name)
                found = stack.enter_context(start_cluster(name, folder, free_port, gate.folder))
                running[name] = found
            return running[name]

        yield start


@pytest.fixture
def cluster(request, engine):
    """The engine that a test names."""
    return engine(request.param)


@pytest.fixture
def build_and_verify(cluster, gate, corpus, local, tmp_path, capsys):
    """build_and_verify(exchange, num_processes, *accidents) builds by the page's command.

    So many processes write shards at a time. There one of them is killed, the accident "worker", or
    Ctrl-C ends the "launcher", which has the engine cancel the job. The same command runs on after
    each, if the engine has not made up for the loss itself. Flink, where a job is dear, is
    given the vocabulary.
    """

    def start(command):
        with (tmp_path / "said.txt").open("wb") as said:
            streams = {"stdout": said, "stderr": subprocess.STDOUT, "start_new_session": True}
            env = os.environ | dict(cluster.environment)
            return subprocess.Popen(["bash", "-c", command], cwd=tmp_path, env=env, **streams)

    def describe():
        logs = [tmp_path / "said.txt", *sorted(cluster.folder.glob("*.log"))]
        tails = [f"--- {path}:\n{path.read_text(errors='replace')[-4000:]}" for path in logs]
        return "\n".join(tails)

    def interrupt(process):
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(SECONDS) == 130, describe()
        said = (tmp_path / "said.txt").read_text()
        assert re.search(r"\nshards: job \S+ was told to end\n", said), describe()

    def run_until(command, num_processes, accident):
        """The exit code of a run that meets an accident, or none."""
        gate.close()
        process = start(command)
        try:
            waiting = gate.wait_for(num_processes, process)
            assert len(waiting) >= num_processes, describe()
            if accident == "worker":
                os.kill(waiting[0], signal.SIGKILL)
            elif accident == "launcher":
                interrupt(process)
            gate.open()
            return process.wait(SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def build(exchange, num_processes, *accidents):
        output = tmp_path / "data"
        vocab = ("--vocab", f"{local}/vocab.txt") if cluster.name == "flink" else LEARNED
        command = cluster.build_command(corpus / "a.jsonl", output, exchange, *vocab, *FLAGS)
        print(command)
        for accident in accidents or (None,):
            code = run_until(command, num_processes, accident)
        if code and accidents:
            code = start(command).wait(SECONDS)
        assert code == 0, describe()
        assert root_hash(output) == root_hash(local)
        assert run("verify", output, "--deep", "true") == 0, capsys.readouterr()

    return build


def write_own(python, corpus, output, local, *arguments, **how):
    """Runs a pipeline of one's own, which makes a dataset and, beside it, shards of samples."""
    program = [python, ROOT / "tests/engines/own_pipeline.py", corpus / "a.jsonl", output]
    command = list(map(str, (*program, local / "vocab.txt", *arguments)))
    subprocess.run(command, check=True, **how)


@pytest.fixture(scope="session")
def here(corpus, local, tmp_path_factory):
    """What it makes here."""
    output = tmp_path_factory.mktemp("engines-own") / "data"
    write_own(sys.executable, corpus, output, local, env=os.environ | {"PYTHONPATH": str(ROOT)})
    return output


@pytest.fixture
def write_and_verify(cluster, corpus, local, here, tmp_path):
    """Runs a pipeline of one's own on the engine, which makes the dataset and shards made here."""

    def write():
        there = tmp_path / "data"
        words = shlex.split(cluster.build_command(corpus / "a.jsonl", there, "files"))
        own = words[words.index("--") + 1 :]
        if "--runner=PortableRunner" in own:
            own.append("--job_server_timeout=10000000")
        environment = os.environ | {"PYTHONPATH": str(ROOT)} | dict(cluster.environment)
        write_own(cluster.python, corpus, there, local, *own, env=environment, cwd=tmp_path)
        assert root_hash(here) == root_hash(there) == root_hash(local)
        made_here, made_there = (
            {path.name: path.read_bytes() for path in Path(f"{output}-samples").iterdir()}
            for output in (here, there)
        )
        assert len(made_here) >= 9
        assert made_here == made_there

    return write
