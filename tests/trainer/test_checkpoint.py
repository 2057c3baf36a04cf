"""Checkpoints: bit for bit on the same ranks, to rounding on others, and never a damaged one.

Run as a program, this file is one rank of three launches: two ranks save, one rank loads that and
saves, three ranks load what it saved.
"""

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from torch.nn import Linear

from tests.trainer.tiny_run import BERT
from tests.trainer.two_ranks import random_micro_batch, run_ranks
from trainer.checkpoints import read
from trainer.checkpoints.settings import CheckpointSettings
from trainer.checkpoints.write import CheckpointSaver, take_snapshot, write_snapshot
from trainer.engine.deepspeed_config import deepspeed_config
from trainer.engine.train_step import agree_on_step, grad_norm, seed_dropout, train_step
from trainer.engine.zero import start_engine
from trainer.model.bert import build_model
from trainer.optim.adamw import AdamW
from trainer.optim.muon import Muon
from trainer.process.ranks import start_ranks, stop_ranks
from trainer.runs.run_folder import RunFolder

pytestmark = pytest.mark.engines

WITHOUT_DROPOUT = dataclasses.replace(BERT, hidden_dropout=0.0, attention_dropout=0.0)
GLOBAL_BATCH = [[7, 5], [9, 6], [12, 3], [8, 8], [11, 4], [6, 6]]
STAGES = [(0, "fp32"), (1, "fp32"), (2, "fp32"), (3, "fp32"), (1, "bf16"), (2, "bf16"), (3, "bf16")]


def make_engine(config, stage, precision, ranks, kind=AdamW):
    model = build_model(config, seed=3)
    optimizer = kind(model.named_parameters())
    return start_engine(model, optimizer, deepspeed_config({}, stage, precision), ranks), optimizer


def train(engine, optimizer, ranks, first_step, num_steps):
    """Rows of MLM loss, NSP loss and gradient norm, each rank taking its share of a batch."""
    rows = []
    for step in range(first_step, first_step + num_steps):
        seed = 100 * step
        batches = [random_micro_batch(each, 50, seed + i) for i, each in enumerate(GLOBAL_BATCH)]
        mine = batches[ranks.rank * 6 // ranks.world_size :][: 6 // ranks.world_size]
        counts = agree_on_step(ranks, mine, 0.0, must_stop=False)
        optimizer.set_learning_rate(0.01)
        seed_dropout(5, 0, step, ranks.rank)
        losses = train_step(engine, ranks, mine, counts)[:2].tolist()
        rows.append([*losses, grad_norm(engine, optimizer)])
    return rows


def load_and_train(path, config, stage, precision, ranks, kind=AdamW):
    engine, optimizer = make_engine(config, stage, precision, ranks, kind)
    state = read.load_checkpoint(path, engine, optimizer, ranks)
    return train(engine, optimizer, ranks, state["step"], 3)


def save_checkpoint(checkpoints, position, engine, optimizer, ranks):
    """Writes a checkpoint while training waits; called by all ranks, which share the folder."""
    return write_snapshot(checkpoints, take_snapshot(position, engine, optimizer, ranks, {}), ranks)


def main(launch, folder):
    ranks = start_ranks()
    results = {}
    if launch == "save-on-two":
        for stage, precision in STAGES:
            engine, optimizer = make_engine(BERT, stage, precision, ranks)
            train(engine, optimizer, ranks, 0, 3)
            where = folder / f"{stage}-{precision}"
            path = save_checkpoint(where, {"step": 3}, engine, optimizer, ranks)
            undisturbed = train(engine, optimizer, ranks, 3, 3)
            resumed = load_and_train(path, BERT, stage, precision, ranks)
            results[f"{stage} {precision}"] = [undisturbed, resumed]
        for name, kind in (("elastic", AdamW), ("muon", Muon)):
            engine, optimizer = make_engine(WITHOUT_DROPOUT, 1, "fp32", ranks, kind)
            train(engine, optimizer, ranks, 0, 3)
            path = save_checkpoint(folder / name, {"step": 3}, engine, optimizer, ranks)
            results[name] = train(engine, optimizer, ranks, 3, 3)
            found = load_and_train(path, WITHOUT_DROPOUT, 2, "fp32", ranks, kind)
            results[f"{name} 2"] = found
    if launch == "load-on-one":
        path = folder / "elastic" / "step-00000003"
        for stage in (0, 1, 2, 3):
            found = load_and_train(path, WITHOUT_DROPOUT, stage, "fp32", ranks)
            results[f"elastic {stage}"] = found
        muon = folder / "muon" / path.name
        results["muon 0"] = load_and_train(muon, WITHOUT_DROPOUT, 0, "fp32", ranks, Muon)
        engine, optimizer = make_engine(WITHOUT_DROPOUT, 1, "fp32", ranks)
        read.load_checkpoint(path, engine, optimizer, ranks)
        save_checkpoint(folder / "alone", {"step": 3}, engine, optimizer, ranks)
        results["faults"] = [fault_of(damaged, ranks) for damaged in make_damaged(path, folder)]
    if launch == "load-on-three":
        path = folder / "alone" / "step-00000003"
        for stage in (2, 3):
            found = load_and_train(path, WITHOUT_DROPOUT, stage, "fp32", ranks)
            results[f"elastic {stage}"] = found
        muon = folder / "muon" / path.name
        results["muon 1"] = load_and_train(muon, WITHOUT_DROPOUT, 1, "fp32", ranks, Muon)
        results["faults"] = [fault_of(folder / "damaged-0" / "step-00000003", ranks)]
    (folder / f"{launch}-{ranks.rank}.json").write_text(json.dumps(results))
    stop_ranks()


def make_damaged(path, folder):
    """Copies: one bit of rank 1's fragments flipped, or that file missing."""
    for number in range(2):
        copy = folder / f"damaged-{number}" / path.name
        shutil.copytree(path, copy)
        file = copy / "fragments-00001-of-00002.safetensors"
        if number == 0:
            data = bytearray(file.read_bytes())
            data[-5] ^= 1
            file.write_bytes(data)
        else:
            file.unlink()
        yield copy


def fault_of(path, ranks):
    try:
        load_and_train(path, WITHOUT_DROPOUT, 1, "fp32", ranks)
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
    ("launch", "key"),
    [
        ("save-on-two", "elastic 2"),
        ("save-on-two", "muon 2"),
        ("load-on-one", "muon 0"),
        ("load-on-three", "muon 1"),
        ("load-on-one", "elastic 0"),
        ("load-on-one", "elastic 1"),
        ("load-on-one", "elastic 2"),
        ("load-on-one", "elastic 3"),
        ("load-on-three", "elastic 2"),
        ("load-on-three", "elastic 3"),
    ],
)
def test_any_number_of_ranks_and_any_stage_continues(launches, launch, key):
    expected = torch.tensor(results_of(launches, "save-on-two")[key.split()[0]])
    found = torch.tensor(results_of(launches, launch)[key])
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=0)


def test_a_damaged_file_is_named_on_every_rank(launches):
    flipped, missing = results_of(launches, "load-on-one")["faults"]
    assert "fragments-00001-of-00002.safetensors: sha256 is" in flipped
    assert "go back to the one before" in flipped
    assert "fragments-00001-of-00002.safetensors is missing" in missing
    for rank in range(3):
        [fault] = results_of(launches, "load-on-three", rank)["faults"]
        assert "fragments-00001-of-00002.safetensors: sha256 is" in fault


@pytest.mark.parametrize("stage", [1, 3])
def test_files_say_what_they_are(launches, stage):
    path = launches / f"{stage}-fp32" / "step-00000003"
    fragments = {f"fragments-0000{rank}-of-00002.safetensors" for rank in range(2)}
    expected = fragments | {"COMMITTED", "model.safetensors", "state.json"}
    assert {file.name for file in path.iterdir()} == expected
    weights = read.read_weights(path)
    assert set(weights) == {name for name, _ in build_model(BERT, seed=0).named_parameters()}
    pieces = read.read_state(path)["fragments"]
    for name, weight in weights.items():
        parts = [torch.zeros(0)]
        for file_name, held in pieces.items():
            if name in held:
                with safe_open(path / file_name, "pt") as file:
                    parts.append(file.get_tensor(f"fp32/{name}"))
        torch.testing.assert_close(torch.cat(parts), weight.flatten(), rtol=0, atol=0)


def test_an_unfinished_save_is_never_the_newest(launches, tmp_path):
    shutil.copytree(launches / "alone", tmp_path, dirs_exist_ok=True)
    shutil.copytree(tmp_path / "step-00000003", tmp_path / "step-00000006")
    (tmp_path / "step-00000006" / "COMMITTED").unlink()
    (tmp_path / "step-00000009.tmp").mkdir()
    finished, unfinished = read.find_checkpoints(tmp_path)
    assert finished == [tmp_path / "step-00000003"]
    assert [path.name for path in unfinished] == ["step-00000006", "step-00000009.tmp"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "COMMITTED is missing"),
        (b"{", "does not describe state.json"),
        (b'{"files": {}}', "does not describe state.json"),
        (b'{"files": {"state.json": {"bytes": 1, "sha256": ""}}}', "bytes is"),
    ],
)
def test_a_damaged_marker_is_named(launches, tmp_path, content, message):
    path = tmp_path / "step-00000003"
    shutil.copytree(launches / "alone" / "step-00000003", path)
    (path / "COMMITTED").unlink() if content is None else (path / "COMMITTED").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read.read_state(path)


def save_small(ranks, folder):
    """A model of two parameters that came one update far, and its checkpoint."""
    module = Linear(3, 2)
    optimizer = AdamW(module.named_parameters())
    optimizer.set_learning_rate(0.1)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    engine = SimpleNamespace(module=module, zero_optimization_stage=lambda: 0)
    saver = CheckpointSaver(RunFolder(folder), CheckpointSettings(), ranks, None, lambda _: None)
    saver.save({"step": 1}, engine, optimizer)
    saver.finish()
    return engine, optimizer, RunFolder(folder).checkpoints / "step-00000001"


def write_state(path, content):
    """Changes state.json, of which COMMITTED then speaks."""
    (path / "state.json").write_text(content)
    marker = json.loads((path / "COMMITTED").read_bytes())
    marker["files"]["state.json"] = read.describe_file(path / "state.json")
    (path / "COMMITTED").write_text(json.dumps(marker))


def pieces_of(state):
    [pieces] = state["fragments"].values()
    return pieces


@pytest.mark.parametrize(
    ("edit", "lacking"),
    [
        (lambda state: pieces_of(state).pop("bias"), "bias"),
        (lambda state: pieces_of(state).update(weight=[0, 5]), "weight"),
        (lambda state: pieces_of(state).update(weight=[1, 5]), "weight"),
        (lambda state: pieces_of(state).clear(), "weight, bias"),
        (lambda state: state["fragments"].clear(), "weight, bias"),
    ],
)
def test_a_checkpoint_that_lacks_parameters_is_refused(ranks, tmp_path, edit, lacking):
    engine, optimizer, path = save_small(ranks, tmp_path)
    assert read.load_checkpoint(path, engine, optimizer, ranks)["step"] == 1
    edit(state := json.loads((path / "state.json").read_bytes()))
    write_state(path, json.dumps(state))
    said = rf"step-00000001 does not hold all of {lacking}; it is of another model"
    with pytest.raises(ValueError, match=said):
        read.load_checkpoint(path, engine, optimizer, ranks)


@pytest.mark.parametrize(
    ("content", "message"), [("[]", "an object"), ('{"step": 1}', "format is None")]
)
def test_a_state_of_another_kind_is_named(ranks, tmp_path, content, message):
    _, _, path = save_small(ranks, tmp_path)
    write_state(path, content)
    with pytest.raises(ValueError, match=f"state.json.*{message}"):
        read.read_state(path)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
