"""Universal checkpoints: stock DeepSpeed goes on from one on other ranks, and runs begin with one.

Run as a program, this file is a rank: of ours, or of DeepSpeed around transformers' model.
"""

import dataclasses
import hashlib
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

from tests.trainer.google_model import CONFIG, VOCAB
from tests.trainer.tiny_run import launch
from tests.trainer.two_ranks import random_micro_batch
from trainer.checkpoints.write import CheckpointSaver
from trainer.cli import main as command
from trainer.conversion.huggingface import hf_names
from trainer.conversion.initial_weights import read_initial_weights
from trainer.engine.deepspeed_config import deepspeed_config
from trainer.engine.train_step import begin_to_agree, train_step
from trainer.engine.zero import start_engine
from trainer.model.bert import build_model
from trainer.optim.adamw import AdamW
from trainer.optim.settings import OptimizerSettings
from trainer.process.ranks import start_ranks, stop_ranks
from trainer.runs.run_folder import RunFolder
from trainer.settings import CheckpointSettings
from trainer.stream.batches.pack import pad_micro_batch

pytestmark = pytest.mark.engines

BERT = dataclasses.replace(CONFIG, hidden_dropout=0.0, attention_dropout=0.0)
RATE, SAVED, STEPS = 1e-3, 3, 6
UNIVERSAL = ("--output_format", "deepspeed-universal")


def batches_of(step):
    """Two micro-batches of as many masked positions: one a rank where there are two."""
    return [random_micro_batch([8, 8], CONFIG.vocab_size, 10 * step + part) for part in range(2)]


def write_run(path):
    run = RunFolder(path)
    run.path.mkdir()
    files = {"config.yaml": "objective: mlm+nsp", "vocab.txt": VOCAB, "tokenizer.json": "{}"}
    for name, text in files.items():
        (run.path / name).write_text(text)
    vocab, tokenizer = (hashlib.sha256(text.encode()).hexdigest() for text in (VOCAB, "{}"))
    dataset = {"name": "wiki", "weight": 1, "root_hash": "ab", "url": "d", "lower_case": True}
    dataset |= {"settings_hash": "cd", "vocab_sha256": vocab, "tokenizer_sha256": tokenizer}
    facts = {"id": "a", "model": dataclasses.asdict(BERT), "launches": [], "datasets": [dataset]}
    run.facts.write_text(json.dumps(facts))
    return run


def train_ours(folder):
    """Losses of all steps, with a checkpoint in the middle."""
    ranks = start_ranks()
    model = build_model(BERT, seed=1)
    optimizer = AdamW(model.named_parameters(), OptimizerSettings(weight_decay=0.0))
    optimizer.set_learning_rate(RATE)
    engine = start_engine(model, optimizer, deepspeed_config({}, 1, "fp32"), ranks)
    saver = CheckpointSaver(write_run(folder / "run"), CheckpointSettings(), ranks, None, print)
    losses = []
    for step in range(STEPS):
        if step == SAVED:
            saver.save({"step": step, "tokens": 1, "instances": 1}, engine, optimizer)
            saver.finish()
        batches = batches_of(step)
        counts = begin_to_agree(ranks, batches, 0.0)()
        sums = train_step(engine, ranks, batches, counts)
        losses.append(float(sums[0] / counts.masked + sums[1] / counts.instances))
    (folder / "ours.json").write_text(json.dumps(losses))


def train_stock(folder, stage):
    """Losses of the steps after the checkpoint, by transformers' model in plain DeepSpeed."""
    ranks = start_ranks()
    import deepspeed
    import transformers

    config = transformers.BertConfig.from_pretrained(folder / "universal")
    model = transformers.BertForPreTraining(config)
    parameters = list(model.parameters())
    # Under ZeRO-3 DeepSpeed gives all its groups one count of updates.
    groups = [parameters] if stage == 3 else [parameters[::2], parameters[1::2]]
    settings = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0}
    settings |= {"zero_optimization": {"stage": stage}, "checkpoint": {"load_universal": True}}
    settings["zero_allow_untested_optimizer"] = True
    groups = [{"params": each} for each in groups]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=1e-6, weight_decay=0.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    engine.load_checkpoint(str(folder / "universal"))
    losses = []
    for step in range(engine.global_steps, STEPS):
        found = engine(**pad_micro_batch(batches_of(step)[ranks.rank], 8))
        engine.backward(found.loss)
        engine.step()
        losses.append(sum(ranks.gather(float(found.loss.detach()))) / ranks.world_size)
    if ranks.rank == 0:
        (folder / f"stock-{stage}.json").write_text(json.dumps(losses))
    if stage == 1:
        engine.save_checkpoint(str(folder / "native"), tag="native")
        if ranks.rank == 0:
            torch.save(model.state_dict(), folder / "native.pt")


def export(folder, output, *flags):
    return command(["export", str(folder), "--output", str(output), *flags])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run of one rank, and its export."""
    folder = tmp_path_factory.mktemp("universal")
    launch([__file__], [str(folder)], 1)
    assert export(folder / "run", folder / "universal", *UNIVERSAL) == 0
    return folder


@pytest.fixture(scope="module")
def stock(trained):
    """Losses by ZeRO stage of two ranks that went on from it."""
    for stage in (1, 3):
        launch([__file__], [str(trained), str(stage)], 2)
    return {stage: json.loads((trained / f"stock-{stage}.json").read_text()) for stage in (1, 3)}


def test_stock_deepspeed_goes_on_with_equal_losses_on_other_ranks(trained, stock):
    ours = pytest.approx(json.loads((trained / "ours.json").read_text())[SAVED:], rel=1e-6)
    assert stock == {1: ours, 3: ours}


@pytest.fixture(scope="module")
def exported(trained):
    """The folder of an export without an optimizer."""
    assert export(trained / "run", trained / "hf") == 0
    return trained / "hf"


def test_a_run_begins_with_the_weights_of_one(trained, exported):
    found = read_initial_weights(str(trained / "universal"))
    assert (found.config, found.vocab) == (BERT, VOCAB.encode())
    options = {"path": str(trained), "target_protocol": "file"}
    assert read_initial_weights("dir://universal", options).state.keys() == found.state.keys()
    expected = read_initial_weights(str(exported)).state
    assert found.state.keys() == expected.keys()
    assert all(torch.equal(found.state[name], tensor) for name, tensor in expected.items())


def test_what_deepspeed_converts_itself_is_read_too(trained, stock):
    places = ["--input_folder", trained / "native/native", "--output_folder", trained / "native/u"]
    program = ["-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    launch(program, [*map(str, places)], 1)
    shutil.copy(trained / "universal/config.json", trained / "native")
    found = read_initial_weights(str(trained / "native")).state
    expected = torch.load(trained / "native.pt")
    names = hf_names(BERT).items()
    assert all(torch.equal(found[ours], expected[theirs]) for ours, theirs in names)


def test_what_has_no_two_moments_is_refused(trained, exported, capsys):
    muon = shutil.copytree(trained / "run", trained / "muon")
    (muon / "config.yaml").write_text("objective: mlm+nsp\noptimizer: {name: muon}\n")
    for folder, said in (
        (exported, "has no optimizer's state: give a run's folder"),
        (muon, "is Muon's, which keeps no second moments"),
    ):
        assert export(folder, trained / "none", *UNIVERSAL) == 2
        assert said in capsys.readouterr().err


if __name__ == "__main__":
    place, *stages = sys.argv[1:]
    train_stock(Path(place), int(stages[0])) if stages else train_ours(Path(place))
    stop_ranks()
