"""The package that Dataflow's workers install, tried in an environment with nothing else.

scripts/test-builder runs it, with what `pip install -e '.[dataflow]'` brings. The command of
scripts/docker/beam-worker.Dockerfile is run in that environment last.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import apache_beam
import fsspec
import pytest

from pipeline.shards.dataset import open_dataset
from tests.pipeline.rich_samples import WRITE_RICH_SAMPLES, check_rich_samples
from tests.project.test_packaging import copy_checkout

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("ignore")]
WARC = (
    b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Type: text/plain\r\nContent-Length: 31\r\n\r\n"
)
DUMP = "<mediawiki><siteinfo><sitename>W</sitename><dbname>w</dbname></siteinfo>{pages}</mediawiki>"
TEXT = "<revision><text>The '''river''' of {0}.</text></revision>"
PAGE = f"<page><title>{{0}}</title><ns>0</ns><id>{{0}}</id>{TEXT}</page>"


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    """Python of an environment that holds the package's source distribution and Beam."""
    if not os.environ.get("BEAMBERT_REQUIRE_DATAFLOW"):
        pytest.skip("scripts/test-builder runs it")
    from apache_beam.runners.portability.stager import Stager

    target = str(tmp_path_factory.mktemp("sdist"))
    sdist = Stager._build_setup_package(str(ROOT / "pyproject.toml"), target)
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    asked = json.dumps([packages, (ROOT / "constraints.txt").read_text()])
    wanted = hashlib.sha256(asked.encode()).hexdigest()
    folder = Path(f"{sys.prefix}-worker")
    python, made = folder / "bin/python", folder / "made"
    if not made.exists() or made.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        install = [f"{sys.prefix}/bin/uv", "pip", "install", "--quiet", "--python", python]
        beam = ["--constraint", ROOT / "constraints.txt", f"apache-beam=={apache_beam.__version__}"]
        trusting = os.environ | {"UV_SYSTEM_CERTS": "1"}
        subprocess.run([*install, *beam, *packages], check=True, env=trusting)
    made.write_text(wanted)
    install = [python, "-m", "pip", "install", "--quiet", "--force-reinstall"]
    subprocess.run([*install, sdist, "--no-deps"], check=True)
    subprocess.run([python, "-m", "pip", "check"], check=True)
    return python


@pytest.fixture(scope="module")
def files(tmp_path_factory, corpus):
    """The corpus, and beside it a dump and a WARC file."""
    folder = tmp_path_factory.mktemp("files")
    for path in corpus.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    pages = "".join(PAGE.format(number) for number in range(4))
    (folder / "wiki.xml").write_text(DUMP.format(pages=pages))
    (folder / "pages.warc").write_bytes(WARC + b"The silver garden by the river.\r\n\r\n")
    return folder


@pytest.fixture(scope="module")
def expected(files, pipeline, tmp_path_factory):
    """The root hash of a build by this process."""
    output = tmp_path_factory.mktemp("expected") / "data"
    assert pipeline("build", "--input", files, "--output", output, "--language", "en") == 0
    return open_dataset(str(output)).manifest.root_hash


@pytest.mark.parametrize(("protocol", "store"), [("gs", "gcs"), ("s3", "s3")])
def test_a_worker_reads_and_writes_stores_and_every_format(
    worker, files, expected, build_arguments, protocol, store, request, tmp_path
):
    options = request.getfixturevalue(store)
    filesystem = fsspec.filesystem(protocol, **options)
    for path in files.iterdir():
        filesystem.pipe_file(f"corpus/worker/{path.name}", path.read_bytes())
    url = f"{protocol}://corpus"
    command = f"build --input {url}/worker --output {url}/worker-data --language en --workers 1"
    given = [*map(str, build_arguments), "--storage_options", json.dumps(options)]
    ours = re.compile("PYTHON|VIRTUAL|BEAMBERT")
    environment = {name: value for name, value in os.environ.items() if not ours.match(name)}
    words = [worker, "-m", "pipeline", *command.split(), *given]
    how = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    ran = subprocess.run(words, **how, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert open_dataset(f"{url}/worker-data", options).manifest.root_hash == expected
    assert "documents have no text" not in ran.stdout


def test_a_worker_encodes_samples_of_every_kind(worker, tmp_path):
    ours = re.compile("PYTHON|VIRTUAL|BEAMBERT")
    environment = {name: value for name, value in os.environ.items() if not ours.match(name)}
    subprocess.run([worker, "-c", WRITE_RICH_SAMPLES], cwd=tmp_path, env=environment, check=True)
    check_rich_samples(tmp_path / "rich")


def installed_files(python):
    """Paths and hashes of what our package has there, but for compiled modules."""
    listing = "import importlib.metadata as m; [print(f, f.hash) for f in m.files('beambert')]"
    how = {"capture_output": True, "text": True, "cwd": "/"}
    printed = subprocess.run([python, "-c", listing], check=True, **how).stdout.splitlines()
    ours = [line for line in printed if line.startswith(("pipeline/", "tokenizer/", "trainer/"))]
    return {line for line in ours if ".so " not in line and "__pycache__" not in line}


def test_the_worker_image_installs_the_same_package(worker, tmp_path):
    """Without a compiler, which takes seconds."""
    by_package = installed_files(worker)
    subprocess.run([worker, "-m", "pip", "uninstall", "--quiet", "--yes", "beambert"], check=True)
    folder = copy_checkout(tmp_path / "image")
    image = (ROOT / "scripts/docker/beam-worker.Dockerfile").read_text()
    [command] = re.findall(r"^RUN (.+)$", image, re.MULTILINE)
    path = f"{worker.parent}:/usr/local/bin:/usr/bin:/bin"
    environment = {"PATH": path, "HOME": os.environ["HOME"], "CC": "/no/such/compiler"}
    subprocess.run(command, shell=True, cwd=folder, env=environment, check=True)
    assert installed_files(worker) == by_package
    assert any("recipes/pretrain/bert-large.yaml" in line for line in by_package)
    version = subprocess.check_output([worker.parent / "beambert", "--version"], cwd="/")
    assert version.startswith(b"beambert 0.")
