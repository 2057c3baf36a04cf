"""What pages show runs with the extra that they name: every other package is hidden.

scripts/test-builder does the same for `dataflow`, in an environment that has nothing else, and for
what Dataflow's workers install (tests/stores/test_worker_package.py).
"""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pipeline.shards.dataset import open_dataset
from tests.datasets import write_vocab
from tests.pipeline.conftest import WORDS, make_text
from tests.pipeline.programs import write_texts
from tests.pipeline.rich_samples import WRITE_RICH_SAMPLES, check_rich_samples
from tests.trainer.lettered_model import export_lettered_model
from tests.trainer.tiny_dataset import write_tiny_dataset

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGE = (ROOT / "docs/library.md").read_text()
HIDE = """
import sys
from importlib.machinery import PathFinder

HIDDEN = set({hidden!r})


class Installed(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Installed
"""  # in a sitecustomize.py, which Python runs before all else, in programs that it starts too


def brought_by(requirements):
    """Names of all distributions that requirements bring, and those bring in turn."""
    found = set()
    missing = [Requirement(each) for each in requirements]
    while missing:
        requirement = missing.pop()
        name = canonicalize_name(requirement.name)
        extras = {"", *requirement.extras}
        wanted = {(name, extra) for extra in extras} - found
        if not wanted or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found |= wanted
        if name == "beambert":
            own = PROJECT["optional-dependencies"]
            missing += [Requirement(each) for extra in requirement.extras for each in own[extra]]
            continue
        for each in map(Requirement, importlib.metadata.requires(name) or ()):
            marker = each.marker
            if not marker or any(marker.evaluate({"extra": extra}) for extra in extras):
                each.marker = None
                missing.append(each)
    return {name for name, _ in found}


@pytest.fixture
def run_with(tmp_path):
    """Runs Python in an environment that seems to hold the core and some requirements alone."""

    def run_python(requirements, *words, cwd=tmp_path):
        kept = brought_by([*PROJECT["dependencies"], *requirements]) | {"beambert"}
        owners = importlib.metadata.packages_distributions()
        hidden = sorted(
            name
            for name, own in owners.items()
            if not {canonicalize_name(each) for each in own} & kept
        )
        assert {"pytest", "hypothesis"} <= {*hidden}
        folder = tmp_path / "site"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(HIDE.format(hidden=hidden))
        path = {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
        command = [sys.executable, *map(str, words)]
        return subprocess.run(
            command, cwd=cwd, env=os.environ | path, capture_output=True, text=True, check=False
        )

    return run_python


def example(name):
    """A program of the page."""
    [code] = re.findall(rf"```python\n(# {name}\.py\n.*?)```", PAGE, re.DOTALL)
    return code


@pytest.mark.processes
def test_what_is_hidden_is_not_there(run_with):
    ran = run_with([], "-c", "import torch")
    assert "ModuleNotFoundError: No module named 'torch'" in ran.stderr
    assert {"apache-beam", "pandas", "numpy"} <= brought_by(["beambert[pipeline]"])
    assert "pytest" not in brought_by(["beambert[pipeline,trainer]"])


@pytest.mark.processes
def test_pipelines_of_your_own_and_beam_yaml_run_with_the_extra_pipeline(run_with, tmp_path):
    texts = [make_text(number) for number in range(120)]
    assert "pip install -e '.[pipeline]'" in PAGE
    write_texts(tmp_path / "news.jsonl", texts[:70])
    write_texts(tmp_path / "books.jsonl", texts[70:])
    write_vocab(tmp_path / "vocab.txt", WORDS)
    table = pa.table({"id": [f"text-{number}" for number in range(120)], "text": texts})
    pq.write_table(table, tmp_path / "texts.parquet")
    given = {"input": "texts.parquet", "vocab": "vocab.txt", "output": "from-yaml"}
    folder = ROOT / "configs/beam"
    shown = (folder / "example.yaml").read_text()
    shown = shown.replace("provider.yaml", str(folder / "provider.yaml"))
    programs = {
        "samples": ("-c", example("samples")),
        "documents": ("-c", example("documents")),
        "rich samples": ("-c", WRITE_RICH_SAMPLES),
        "Beam YAML": (
            "-m",
            "apache_beam.yaml.main",
            f"--yaml_pipeline={shown}",
            f"--jinja_variables={json.dumps(given)}",
        ),
    }
    for name, words in programs.items():
        ran = run_with(["beambert[pipeline]"], *words)
        assert ran.returncode == 0, name + ran.stderr[-3000:]
    check_rich_samples(tmp_path / "rich")
    assert json.loads((tmp_path / "from-yaml/samples/manifest.json").read_text())["samples"] == 120
    assert open_dataset(str(tmp_path / "my-data")).all_shards


@pytest.mark.processes
def test_workers_that_install_the_core_and_beam_alone_encode_samples(run_with, tmp_path):
    [beam] = [
        each
        for each in PROJECT["optional-dependencies"]["pipeline"]
        if each.startswith("apache-beam")
    ]
    ran = run_with([beam], "-c", WRITE_RICH_SAMPLES)
    assert ran.returncode == 0, ran.stderr[-3000:]
    check_rich_samples(tmp_path / "rich")


@pytest.mark.processes
def test_tfrecord_files_are_written_with_the_extra_tfrecord(run_with, tmp_path):
    write_tiny_dataset(tmp_path / "data")
    words = ("-m", "pipeline", "export", "data", "--output", "out", "--format", "tfrecord")
    ran = run_with(["beambert[tfrecord]"], *words)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert [*(tmp_path / "out").rglob("*.tfrecord*")]


@pytest.mark.engines
def test_models_and_streams_are_used_with_the_extra_trainer(run_with, tmp_path):
    export_lettered_model(tmp_path / "hf", num_layers=2)
    write_tiny_dataset(tmp_path / "data", seq_lens=(128,))
    first, second, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    ran = run_with(["beambert[trainer]"], "-c", "\n".join([first, second, example("plain_loop")]))
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.splitlines()[-1] == "position 96"
