"""Builds from and to repositories of the Hugging Face Hub: equal to a local one."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.shards.dataset import open_dataset
from pipeline.storage.faults import StorageError
from pipeline.storage.folder import Folder
from tests.stores.conftest import ROOT, assert_same_batches, root_hash
from tests.stores.hub_server import Hub

DATA = "hf://datasets/who/data"
pytestmark = [
    pytest.mark.processes,
    # huggingface_hub's own call
    pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload:DeprecationWarning"),
]


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def options(hub):
    return {"endpoint": hub.url, "token": "hf_stand_in"}


def put_corpus(hub, texts):
    for number, rows in enumerate((texts[:50], texts[50:])):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"text": rows}), sink)
        name = f"data/train-{number:05d}-of-00002.parquet"
        hub.files["who/corpus"][name] = sink.getvalue().to_pybytes()


def run(hub, *command):
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_stand_in"}
    environment |= {"HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(ROOT)}
    words = [*map(str, command)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_build_from_and_to_the_hub_equals_a_local_one(
    hub, options, texts, local, build_arguments
):
    hub.files |= {"who/corpus": {"README.md": b"# About\n"}, "who/data": {}}
    put_corpus(hub, texts)
    hub.answers = {("POST", "/commit/"): [412, 503], ("PUT", "/lfs/"): [500] * 6}
    hub.answers["GET", "/resolve/"] = [502]
    paths = ("--input", "hf://datasets/who/corpus/data/*.parquet", "--output", DATA)
    build = (sys.executable, "-m", "pipeline", "build", "--workers", 1)
    said = run(hub, *build, *paths, *build_arguments)
    assert "every file becomes a commit, and the Hub takes 128 an hour" in said
    assert "hffs-" not in said  # a bar a file
    assert not any(hub.answers.values())
    assert root_hash(DATA, options) == root_hash(local)


def test_a_dataset_that_was_published_in_one_commit_is_streamed(hub, options, local):
    words = f"upload who/data {local} . --repo-type dataset --exclude tokens/*".split()
    run(hub, Path(sys.prefix, "bin/hf"), *words)
    assert hub.commits == 1
    assert not any(name.startswith("tokens/") for name in hub.files["who/data"])
    assert_same_batches(open_dataset(DATA, options), open_dataset(str(local)))


def test_a_folder_lists_reads_writes_and_removes(hub, options):
    hub.files["who/data"] = {}
    folder = Folder("hf://datasets/who/data/part", options)
    names = [f"{name}/{size}" for name in ("a", "b") for size in (1, 2, 40, 41, 42)]
    contents = {name: bytes(range(256)) * int(name[2:]) for name in names}
    for name, data in contents.items():
        folder.write(name, data)
    assert folder.list() == {name: len(data) for name, data in contents.items()}
    assert folder.read_many(list(contents)) == contents
    assert folder.read_range("b/40", 300, 9000) == contents["b/40"][300:9000]
    folder.remove(["a/1", "a/2"])
    assert not folder.exists("a/1")
    assert folder.exists("a/40")
    with pytest.raises(FileNotFoundError):
        folder.read("a/1")


def test_a_hub_that_goes_on_failing_is_named(hub, options, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    hub.files["who/data"] = {}
    hub.answers = {("POST", "/commit/"): [503] * 50}
    said = r"(?s)hf://datasets/who/data/x: gave up after 6 attempt.*run the same"
    with pytest.raises(StorageError, match=said):
        Folder("hf://datasets/who/data", options).write("x", b"y")
    assert "x" not in hub.files["who/data"]


def test_a_repository_that_is_not_there_is_named(hub, options):
    with pytest.raises(FileNotFoundError, match="who/nobody"):
        Folder("hf://datasets/who/nobody", options).write("x", b"y")
