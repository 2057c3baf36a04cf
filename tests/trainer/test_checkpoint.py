"""Checkpoints: bit for bit on the same ranks, to rounding on others, and never a damaged one.

Run as a program, this file is one rank of three launches: two ranks save, one rank loads that and
saves, three ranks load what it saved.
"""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.test_uploads import Trained
from tests.trainer.tiny_run import BERT, WITHOUT_DROPOUT
from tests.trainer.two_ranks import random_micro_batch, run_ranks
from trainer.checkpoints import files, read
from trainer.checkpoints.write import take_snapshot, write_snapshot
from trainer.engine.deepspeed_config import deepspeed_config
from trainer.engine.train_step import begin_to_agree, grad_norm, seed_dropout, train_step
from trainer.engine.zero import start_engine
from trainer.model.bert import build_model
from trainer.optim.adamw import AdamW
from trainer.optim.muon import Muon
from trainer.process.ranks import start_ranks, stop_ranks

pytestmark = pytest.mark.engines

CALM = dataclasses.replace(BERT, **WITHOUT_DROPOUT)
STEP = "step-00000003"
GLOBAL_BATCH = [[7, 5], [9, 6], [12, 3], [8, 8], [11, 4], [6, 6]]
STAGES = [(0, "fp32"), (1, "fp32"), (2, "fp32"), (3, "fp32"), (1, "bf16"), (2, "bf16"), (3, "bf16")]


BUCKETS = {"zero_optimization": {"reduce_bucket_size": 2_000}}
"""Muon's, so that borders between ranks split nearly every matrix."""


def make_engine(config, stage, precision, ranks, kind=AdamW):
    model = build_model(config, seed=3)
    optimizer = kind(model.named_parameters())
    chosen = deepspeed_config(BUCKETS if kind is Muon else {}, stage, precision)
    return start_engine(model, optimizer, chosen, ranks), optimizer


def train(engine, optimizer, ranks, first_step, num_steps):
    """Rows of MLM loss, NSP loss and gradient norm, each rank taking its share of a batch."""
    rows = []
    for step in range(first_step, first_step + num_steps):
        seed = 100 * step
        batches = [random_micro_batch(each, 50, seed + i) for i, each in enumerate(GLOBAL_BATCH)]
        mine = batches[ranks.rank * 6 // ranks.world_size :][: 6 // ranks.world_size]
        counts = begin_to_agree(ranks, mine, 0.0)()
        optimizer.set_learning_rate(0.01)
        seed_dropout(5, 0, step, ranks.rank)
        losses = train_step(engine, ranks, mine, counts)[:2].tolist()
        rows.append([*losses, grad_norm(engine, optimizer)])
    return rows


def load_and_train(path, config, stage, precision, ranks, kind=AdamW):
    engine, optimizer = make_engine(config, stage, precision, ranks, kind)
    state = read.load_checkpoint(path, engine, optimizer, ranks)
    return train(engine, optimizer, ranks, state["step"], 3)


def save_checkpoint(checkpoints, engine, optimizer, ranks):
    """Writes a checkpoint while training waits; called by all ranks, which share the folder."""
    snapshot = take_snapshot({"step": 3}, engine, optimizer, ranks, {})
    return write_snapshot(checkpoints, snapshot, ranks)


def main(launch, folder):
    ranks = start_ranks()
    results = {}
    if launch == "save-on-two":
        for stage, precision in STAGES:
            engine, optimizer = make_engine(BERT, stage, precision, ranks)
            train(engine, optimizer, ranks, 0, 3)
            path = save_checkpoint(folder / f"{stage}-{precision}", engine, optimizer, ranks)
            undisturbed = train(engine, optimizer, ranks, 3, 3)
            resumed = load_and_train(path, BERT, stage, precision, ranks)
            results[f"{stage} {precision}"] = [undisturbed, resumed]
        for name, kind in (("elastic", AdamW), ("muon", Muon)):
            engine, optimizer = make_engine(CALM, 1, "fp32", ranks, kind)
            train(engine, optimizer, ranks, 0, 3)
            path = save_checkpoint(folder / name, engine, optimizer, ranks)
            results[name] = train(engine, optimizer, ranks, 3, 3)
            results[f"{name} 2"] = load_and_train(path, CALM, 2, "fp32", ranks, kind)
    muon = folder / "muon" / STEP
    if launch == "load-on-one":
        path = folder / "elastic" / STEP
        for stage in (0, 1, 2, 3):
            results[f"elastic {stage}"] = load_and_train(path, CALM, stage, "fp32", ranks)
        results["muon 0"] = load_and_train(muon, CALM, 0, "fp32", ranks, Muon)
        engine, optimizer = make_engine(CALM, 1, "fp32", ranks)
        read.load_checkpoint(path, engine, optimizer, ranks)
        save_checkpoint(folder / "alone", engine, optimizer, ranks)
        results["faults"] = [fault_of(damaged, ranks) for damaged in make_damaged(path, folder)]
    if launch == "load-on-three":
        path = folder / "alone" / STEP
        for stage in (2, 3):
            results[f"elastic {stage}"] = load_and_train(path, CALM, stage, "fp32", ranks)
        results["muon 1"] = load_and_train(muon, CALM, 1, "fp32", ranks, Muon)
        results["faults"] = [fault_of(folder / "damaged-0" / STEP, ranks)]
    (folder / f"{launch}-{ranks.rank}.json").write_text(json.dumps(results))
    stop_ranks()


def make_damaged(path, folder):
    """Copies: one bit of rank 1's fragments flipped, or that file missing."""
    copies = [shutil.copytree(path, folder / f"damaged-{each}" / STEP) for each in range(2)]
    flipped, missing = (copy / "fragments-00001-of-00002.safetensors" for copy in copies)
    data = bytearray(flipped.read_bytes())
    data[-5] ^= 1
    flipped.write_bytes(data)
    missing.unlink()
    return copies


def fault_of(path, ranks):
    try:
        load_and_train(path, CALM, 1, "fp32", ranks)
    except ValueError as error:
        return str(error)


@pytest.fixture(scope="module")
def launches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    for launch, world_size in (("save-on-two", 2), ("load-on-one", 1), ("load-on-three", 3)):
        for process in run_ranks([__file__, launch, str(folder)], world_size):
            assert process.returncode == 0, process.stderr
    return folder


def results_of(folder, launch, rank=0):
    return json.loads((folder / f"{launch}-{rank}.json").read_text())


@pytest.mark.parametrize(("stage", "precision"), STAGES)
def test_resume_on_the_same_ranks_is_exact_to_the_last_bit(launches, stage, precision):
    undisturbed, resumed = results_of(launches, "save-on-two")[f"{stage} {precision}"]
    assert resumed == undisturbed


@pytest.mark.parametrize(
    ("launch", "name", "stages"),
    [
        ("save-on-two", "elastic", [2]),
        ("save-on-two", "muon", [2]),
        ("load-on-one", "elastic", [0, 1, 2, 3]),
        ("load-on-one", "muon", [0]),
        ("load-on-three", "elastic", [2, 3]),
        ("load-on-three", "muon", [1]),
    ],
)
def test_any_number_of_ranks_and_any_stage_continues(launches, launch, name, stages):
    expected = torch.tensor(results_of(launches, "save-on-two")[name])
    for stage in stages:
        found = torch.tensor(results_of(launches, launch)[f"{name} {stage}"])
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=0)


def test_a_damaged_file_is_named_on_every_rank(launches):
    flipped, missing = results_of(launches, "load-on-one")["faults"]
    others = [results_of(launches, "load-on-three", rank)["faults"] for rank in range(3)]
    for [fault] in ([flipped], *others):
        assert "fragments-00001-of-00002.safetensors: sha256 is" in fault
        assert "go back to the one before" in fault
    assert "fragments-00001-of-00002.safetensors is missing" in missing


@pytest.mark.parametrize("stage", [1, 3])
def test_files_say_what_they_are(launches, stage):
    path = launches / f"{stage}-fp32" / STEP
    names = {f"fragments-0000{rank}-of-00002.safetensors" for rank in range(2)}
    names |= {"COMMITTED", "model.safetensors", "state.json"}
    assert {file.name for file in path.iterdir()} == names
    weights = read.read_weights(path)
    assert set(weights) == {name for name, _ in build_model(BERT, seed=0).named_parameters()}
    pieces = files.read_state(path)["fragments"]
    tensors = {file: load_file(path / file) for file in pieces}
    for name, weight in weights.items():
        parts = [tensors[file][f"fp32/{name}"] for file, held in pieces.items() if name in held]
        torch.testing.assert_close(torch.cat(parts), weight.flatten(), rtol=0, atol=0)


def test_an_unfinished_save_is_never_the_newest(launches, tmp_path):
    shutil.copytree(launches / "alone", tmp_path, dirs_exist_ok=True)
    shutil.copytree(tmp_path / STEP, tmp_path / "step-00000006")
    (tmp_path / "step-00000006" / "COMMITTED").unlink()
    (tmp_path / "step-00000009.tmp").mkdir()
    finished, unfinished = files.find_checkpoints(tmp_path)
    assert finished == [tmp_path / STEP]
    assert [path.name for path in unfinished] == ["step-00000006", "step-00000009.tmp"]


def write_state(path, content):
    """Changes state.json, of which COMMITTED then speaks."""
    (path / "state.json").write_bytes(content)
    marker = json.loads((path / "COMMITTED").read_bytes())
    marker["files"]["state.json"] = files.describe_file(path / "state.json")
    (path / "COMMITTED").write_text(json.dumps(marker))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("COMMITTED", b"{", "does not describe state.json"),
        ("COMMITTED", b'{"files": {}}', "does not describe state.json"),
        ("COMMITTED", b'{"files": {"state.json": {"bytes": 1, "sha256": ""}}}', "bytes is"),
        ("state.json", b"[]", "state.json.*a JSON object"),
        ("state.json", b'{"step": 1}', "state.json.*format is None"),
    ],
)
def test_a_damaged_marker_or_state_is_named(launches, tmp_path, name, content, message):
    path = shutil.copytree(launches / "alone" / STEP, tmp_path / STEP)
    write_state(path, content) if name == "state.json" else (path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        files.read_state(path)
    (path / "COMMITTED").unlink()
    with pytest.raises(ValueError, match="COMMITTED is missing"):
        files.read_state(path)


@pytest.mark.parametrize(
    ("edit", "lacking"),
    [
        (lambda pieces: pieces.pop("bias"), "bias"),
        (lambda pieces: pieces.update(weight=[0, 5]), "weight"),
        (lambda pieces: pieces.update(weight=[1, 5]), "weight"),
        (lambda pieces: pieces.clear(), "weight, bias"),
    ],
)
def test_a_checkpoint_that_lacks_parameters_is_refused(ranks, tmp_path, edit, lacking):
    trained = Trained(ranks, tmp_path, url=None)
    trained.save(1)
    path, ours = trained.run.checkpoints / "step-00000001", (trained.engine, trained.optimizer)
    assert read.load_checkpoint(path, *ours, ranks)["step"] == 1
    state = json.loads((path / "state.json").read_bytes())
    edit(*state["fragments"].values())
    write_state(path, json.dumps(state).encode())
    said = rf"step-00000001 does not hold all of {lacking}; it is of another model"
    with pytest.raises(ValueError, match=said):
        read.load_checkpoint(path, *ours, ranks)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
