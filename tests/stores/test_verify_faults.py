"""A sound dataset behind a faulty network is sound: nothing is called damaged after one answer."""

import json
import re

import numpy as np
import pytest

from pipeline.shards.dataset import open_dataset, read_block
from pipeline.storage import faults
from pipeline.storage.folder import Folder
from tests.stores.conftest import first_batches, s3_options
from tests.stores.faulty_proxy import error, wrong_byte

pytestmark = pytest.mark.engines

missing = error(404, "NoSuchKey")
FILES = (
    "manifest.json", "shards.parquet", "blocks.parquet", "vocab.txt", "tokenizer.json",
    "documents.ids", "pass-00/pass.json", "train/L64/pass-00/shard-00000.tar",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch):
    monkeypatch.setattr(faults, "FIRST_DELAY_SECONDS", 0.001)
    monkeypatch.setattr(faults, "MAX_DELAY_SECONDS", 0.002)


@pytest.fixture(scope="module")
def uploaded(s3, local):
    for path in local.rglob("*"):
        if path.is_file() and "tokens" not in path.parts:
            name = str(path.relative_to(local))
            Folder("s3://corpus/sound", s3).write(name, path.read_bytes())
    return "s3://corpus/sound"


@pytest.fixture
def spoil(start_proxy, swift_port):
    """spoil(kind, name, count): options of Swift that spoils its first answers about a file."""

    def start(kind, name, count):
        if kind == "wrong byte":
            proxy = start_proxy(swift_port, wrong_byte, count, files=name)
            return proxy, s3_options(proxy.server_address[1])
        method = {"404 to GET": "GET", "404 to HEAD": "HEAD"}[kind]

        def chooses(asked, path):
            return asked == method and path.endswith(name) and proxy.left > 0

        proxy = start_proxy(swift_port, missing, count, chooses=chooses)
        return proxy, s3_options(proxy.server_address[1])

    return start


@pytest.mark.parametrize("kind", ["wrong byte", "404 to GET", "404 to HEAD"])
@pytest.mark.parametrize("name", FILES)
def test_one_bad_answer_is_no_damage(uploaded, pipeline, spoil, capfd, kind, name):
    proxy, options = spoil(kind, name, 1)
    code = pipeline("verify", uploaded, "--storage_options", json.dumps(options))
    said = capfd.readouterr()
    assert (code, proxy.spoiled > 0 or kind == "404 to HEAD") == (0, True), said


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("wrong byte", FILES[-1], r"shard-00000.tar: block \d+: crc32 of"),
        ("404 to GET", FILES[-1], r"shard-00000.tar: missing"),
        ("404 to GET", "pass-00/pass.json", r"pass.json: missing"),
        ("wrong byte", "vocab.txt", r"vocab.txt: is not the file that manifest.json"),
    ],
)
def test_what_stays_damaged_is_called_so(uploaded, pipeline, spoil, capfd, kind, name, said):
    proxy, options = spoil(kind, name, 1000)
    assert pipeline("verify", uploaded, "--storage_options", json.dumps(options)) == 2
    assert re.search(said, capfd.readouterr().out)
    assert proxy.spoiled >= faults.DAMAGE_ATTEMPTS


@pytest.mark.parametrize("kind", ["wrong byte", "404 to GET"])
def test_a_block_and_a_stream_survive_one_bad_answer(uploaded, s3, spoil, kind):
    dataset = open_dataset(uploaded, s3)
    shard = dataset.all_shards[0]
    proxy, options = spoil(kind, ".tar", 1)
    found = read_block(open_dataset(uploaded, options), shard, 0)
    assert np.array_equal(found.input_ids, read_block(dataset, shard, 0).input_ids)
    assert proxy.spoiled == 1
    proxy, options = spoil(kind, ".tar", 2)
    assert len(first_batches(open_dataset(uploaded, options))) >= 3
    assert proxy.spoiled == 2
