"""Models by their names on the Hub: fetched with their revision, or one line where they are not."""

import threading

import pytest

from pipeline.settings import BuildSettings
from pipeline.stages.corpus import read_vocabulary
from pipeline.storage.hub import revision_of
from tests.finetune.tiny_model import write_pretrained
from tests.stores.hub_server import SHA, Hub
from tokenizer.vocab import parse_vocab
from trainer.conversion.initial_weights import resolve_model
from trainer.inference.open_model import open_model
from trainer.runs.training_facts import base_model_facts

pytestmark = pytest.mark.processes


@pytest.fixture
def hub(monkeypatch, tmp_path):
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in {
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_OFFLINE": False,
        "ENDPOINT": server.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": server.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    monkeypatch.chdir(tmp_path)
    yield server
    server.shutdown()
    server.server_close()


def test_a_name_is_a_model_of_the_hub_at_its_revision(hub, tmp_path):
    folder = write_pretrained(tmp_path / "hf")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files["README.md"] = b"---\nlicense: mit\n---\n"
    hub.files["who/tiny"] = {**files, "training_args.bin": b"not wanted"}
    opened = open_model("who/tiny")
    assert opened.where == f"who/tiny at revision {SHA}"
    expected = open_model(str(folder)).state
    assert all((opened.state[name] == expected[name]).all() for name in expected)
    fetched = resolve_model("who/tiny")
    assert revision_of(fetched) == SHA
    base = base_model_facts("who/tiny", fetched)
    assert base == {"name": "who/tiny", "licence": "mit", "provenance": opened.provenance}


def test_a_vocabulary_is_that_of_a_model_of_the_hub_or_of_its_folder(hub, tmp_path):
    folder = write_pretrained(tmp_path / "hf")
    hub.files["who/tiny"] = {"vocab.txt": (folder / "vocab.txt").read_bytes()}
    settings = BuildSettings(input=["text"], output="data", vocab="who/tiny")
    expected = parse_vocab((folder / "vocab.txt").read_bytes(), "")
    assert read_vocabulary(settings, "who/tiny").tokens == expected.tokens
    assert read_vocabulary(settings, str(folder)).tokens == expected.tokens


def test_a_name_that_is_nowhere_is_one_line_with_the_cure(hub):
    with pytest.raises(FileNotFoundError) as refused:
        open_model("who/none")
    assert "\n" not in str(refused.value)
    assert "who/none is no folder here" in str(refused.value)
    assert "`hf download who/none --local-dir who/none`" in str(refused.value)
