"""A run's newest checkpoint as a model folder, from its folder and from a URL."""

import dataclasses
import hashlib
import json
import shutil
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch

from tests.trainer.google_model import CONFIG, VOCAB
from trainer.checkpoints.files import describe_file
from trainer.checkpoints.store import CheckpointStore
from trainer.checkpoints.write import CheckpointSaver
from trainer.cli import main
from trainer.conversion.initial_weights import read_initial_weights
from trainer.inference.open_model import open_model
from trainer.model.bert import build_model
from trainer.optim.adamw import AdamW
from trainer.runs.run_folder import RunFolder
from trainer.settings import CheckpointSettings

pytestmark = pytest.mark.engines

URL, LAST = "memory://bucket/run", "/bucket/run/checkpoints/step-00000002"
STATE = {"format": 2, "tokens": 1234, "instances": 56}
TOKENIZER = "{}"
DATASET = {
    "name": "wiki", "weight": 1, "root_hash": "ab", "url": "d", "lower_case": True, "settings_hash": "cd",
    "vocab_sha256": hashlib.sha256(VOCAB.encode()).hexdigest(),
    "tokenizer_sha256": hashlib.sha256(TOKENIZER.encode()).hexdigest(),
}  # fmt: skip


@pytest.fixture
def run(ranks, bucket, tmp_path):
    """A run's folder with checkpoints of steps 1 and 2, both at the URL; the second's weights."""
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    facts = {"id": "abc", "model": dataclasses.asdict(CONFIG), "launches": []}
    run.facts.write_text(json.dumps({**facts, "datasets": [DATASET]}))
    (run.path / "config.yaml").write_text("objective: mlm+nsp")
    (run.path / "vocab.txt").write_text(VOCAB)
    (run.path / "tokenizer.json").write_text(TOKENIZER)
    engine = SimpleNamespace(
        module=build_model(CONFIG, seed=1), weights=None, zero_optimization_stage=lambda: 0
    )
    optimizer = AdamW(engine.module.named_parameters())
    optimizer.set_learning_rate(0.1)
    saver = CheckpointSaver(run, CheckpointSettings(keep=5), ranks, CheckpointStore(URL), print)
    for step in (1, 2):
        for parameter in engine.module.parameters():
            parameter.grad = torch.full_like(parameter, 0.01 * step)
        optimizer.step()
        saver.save({**STATE, "step": step}, engine, optimizer)
    saver.finish()
    return SimpleNamespace(path=run.path, weights=engine.module.state_dict())


def export(source, output):
    return main(["export", str(source), "--output", str(output)])


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_minimal_pairs_are_those_of_the_checkpoints_step(run, bucket):
    config = "objective: mlm+nsp\nvalidation: {pairs: s3://texts/blimp.jsonl}\n"
    rows = ""
    for step, right in ((1, 0.25), (2, 0.75), (3, 0.5)):
        columns = {"pairs": 4, "pairs_accuracy": right, "pairs_groups": {}}
        rows += json.dumps({"step": step, "split": "validation", **columns}) + "\n"
    (run.path / "config.yaml").write_text(config)
    (run.path / "metrics.jsonl").write_text(rows)
    bucket.pipe({"/bucket/run/config.yaml": config.encode()})
    assert "minimal_pairs" not in open_model(URL).provenance, "the URL has no metrics yet"
    bucket.pipe({"/bucket/run/metrics.jsonl": rows.encode()})
    for place in (run.path, URL):
        for name, right in ((f"{place}@1", 0.25), (f"{place}", 0.75)):
            measured = open_model(name).provenance["minimal_pairs"]
            assert (measured["file"], measured["num_pairs"]) == ("blimp.jsonl", 4)
            assert measured["accuracy"] == right
        assert "minimal_pairs" not in open_model(f"{place}@mean2").provenance


def test_a_run_whose_disk_is_gone_is_exported_from_its_url(run, bucket, tmp_path, capsys):
    assert [export(run.path, tmp_path / "from-folder") for _ in range(2)] == [0, 0]
    shutil.rmtree(run.path)
    bucket.rm(f"{LAST}/fragments-00000-of-00001.safetensors")  # not needed
    capsys.readouterr()
    assert export(URL, tmp_path / "from-url") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["step"], said["checkpoint"]) == (2, f"memory:/{LAST}")
    assert contents(tmp_path / "from-url") == contents(tmp_path / "from-folder")
    found = read_initial_weights(str(tmp_path / "from-url"))
    assert found.state.keys() == run.weights.keys()
    assert all(torch.equal(tensor, run.weights[name]) for name, tensor in found.state.items())


def test_a_url_without_a_run_or_a_checkpoint_is_named(run, bucket, tmp_path, capsys):
    assert export("memory://bucket/nothing", tmp_path / "out") == 2
    says = "memory://bucket/nothing holds no run.json; give the --checkpoint.url"
    assert says in capsys.readouterr().err
    for step in (1, 2):
        bucket.rm(f"/bucket/run/checkpoints/step-0000000{step}/COMMITTED")
    assert export(URL, tmp_path / "out") == 2
    assert f"no committed checkpoint at {URL}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("vocab.txt", lambda data: data.replace(b"\nd\n", b"\nD\n"), "vocab.txt is not what the run was trained with"),
        ("tokenizer.json", lambda _: b"[]", "tokenizer.json is not what the run was trained with: its sha256 is"),
        ("vocab.txt", None, "vocab.txt is missing; copy it from the dataset"),
        ("run.json", lambda data: data[:-9], "run.json is damaged, it is not JSON: "),
        ("run.json", lambda _: b"7", "run.json is damaged: it holds 7, expected a JSON object; restore it"),
        ("run.json", lambda data: data.replace(b'"id"', b'"ID"'), "run.json lacks id: it is damaged, or of an earlier"),
        ("run.json", lambda data: data.replace(b'"vocab_sha', b'"v'), "run.json lacks vocab_sha256 of a dataset"),
        ("run.json", lambda data: data.replace(b'[{"name', b'[1, {"name'), "run.json is damaged: datasets[0] is 1, expected an object; restore it"),
        ("run.json", lambda data: data.replace(b'"num_heads"', b'"heads"'), "run.json is damaged: its model is not"),
        ("config.yaml", lambda _: b"a: [", "config.yaml is damaged, it is not YAML: "),
        ("config.yaml", lambda _: b"\xff\xfe\xff", "config.yaml is damaged, it is not YAML: "),
        ("config.yaml", lambda _: b"", "config.yaml is damaged: it holds 'None', expected keys and values"),
        ("config.yaml", lambda _: b"seed: 1", "config.yaml lacks objective: it was cut or edited"),
        ("config.yaml", None, "config.yaml is missing; restore it"),
    ],
)  # fmt: skip
def test_what_is_changed_or_damaged_in_a_run_is_named(
    run, bucket, tmp_path, capsys, name, spoil, said
):
    place = run.path / name
    data = place.read_bytes()
    place.write_bytes(spoil(data)) if spoil else place.unlink()
    assert export(run.path, tmp_path / "hf") == 2
    assert f"{run.path}/{said}" in capsys.readouterr().err
    assert not (tmp_path / "hf").exists()
    place.write_bytes(data)
    remote = f"/bucket/run/{name}"
    bucket.pipe_file(remote, spoil(data)) if spoil else bucket.rm_file(remote)
    assert export(URL, tmp_path / "hf") == 2
    assert name in capsys.readouterr().err
    assert not (tmp_path / "hf").exists()


def test_a_checkpoint_without_some_of_the_weights_is_not_exported(run, tmp_path, capsys):
    checkpoint = run.path / "checkpoints" / "step-00000002"
    weights = safetensors.torch.load_file(checkpoint / "model.safetensors")
    lost = weights.pop("bert.layers.0.key.bias")
    for changed in (weights, {**weights, "bert.layers.0.key.bias": lost[:-1]}):
        safetensors.torch.save_file(changed, checkpoint / "model.safetensors")
        marker = json.loads((checkpoint / "COMMITTED").read_bytes())
        marker["files"]["model.safetensors"] = describe_file(checkpoint / "model.safetensors")
        (checkpoint / "COMMITTED").write_text(json.dumps(marker))
        assert export(run.path, tmp_path / "hf") == 2
        said = capsys.readouterr().err
        assert f"{checkpoint} does not hold the weights of the run's model: " in said
        assert "bert.layers.0.key.bias" in said
    assert export(f"{run.path}@1", tmp_path / "hf") == 0
