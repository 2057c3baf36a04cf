"""What makes the gradient of a step large is found: halves, shares, and the documents."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from pipeline.shards.block import Block
from tests.datasets import MASK, write_dataset
from tests.trainer.tiny_dataset import random_block
from tests.trainer.tiny_run import OURS, TINY, launch, write_config
from trainer.model.bert import build_model
from trainer.model.config import BertConfig
from trainer.replay.blame import Half, StepGradient, find_by_halves
from trainer.replay.blame_step import choose_checkpoint
from trainer.stream.order.state import StreamState

BAD = 1000
"""The first of the documents that were planted."""


def test_halves_end_at_the_instance_that_makes_the_norm():
    """The norm is 9 with slot 5 and 1 without it."""
    halves = [*find_by_halves(lambda left_out: 1.0 if 5 in left_out else 9.0, 8)]
    assert halves == [
        Half(0, 3, 9.0),
        Half(4, 7, 1.0),
        Half(4, 5, 1.0),
        Half(6, 7, 9.0),
        Half(4, 4, 9.0),
        Half(5, 5, 1.0),
    ]
    assert [*find_by_halves(lambda _: 1.0, 1)] == []


def test_of_two_such_instances_halves_find_the_larger():
    weights = {2: 5.0, 7: 8.0}
    halves = find_by_halves(lambda out: sum(weights[slot] for slot in {*weights} - {*out}), 10)
    assert [*halves][-2:] == [Half(7, 7, 5.0), Half(8, 9, 13.0)]


def test_a_norm_that_is_no_number_counts_as_the_largest():
    halves = [*find_by_halves(lambda out: 1.0 if 3 in out else math.nan, 4)]
    assert halves[-1] == Half(3, 3, 1.0)


def monotonous_block(num_instances, bad_rows, seed=0):
    """Instances of one repeated token; the bad ones hold other tokens, each its own."""
    block: Block = random_block(np.random.default_rng(seed), num_instances, 16, 60)
    row_of_token = np.repeat(np.arange(num_instances), np.diff(block.offsets))
    token_of_row = np.full(num_instances, 5, np.uint16)
    token_of_row[bad_rows] = 10 + np.arange(len(bad_rows)) % 45
    is_word = block.input_ids > MASK
    input_ids = np.where(is_word, token_of_row[row_of_token], block.input_ids).astype(np.uint16)
    documents = np.arange(num_instances, dtype=np.uint64)
    documents[bad_rows] += BAD
    return replace(
        block,
        input_ids=input_ids,
        masked_lm_ids=np.repeat(token_of_row, 2),
        is_random_next=np.zeros(num_instances, bool),
        document_a=documents,
        document_b=documents,
    )


@pytest.fixture(scope="module")
def step():
    """A step of 6 instances of a new model, without dropout."""
    model = build_model(BertConfig(vocab_size=60, **TINY), 3)
    return StepGradient(model, monotonous_block(6, [4]), "mlm+nsp", 1.0, 32)


def test_shares_sum_to_one_and_do_not_depend_on_micro_batches(step):
    shares = step.share_each()
    assert sum(share.share for share in shares) == pytest.approx(1)
    assert sorted(share.slot for share in shares) == [0, 1, 2, 3, 4, 5]
    assert [share.share for share in shares] == sorted((s.share for s in shares), reverse=True)
    assert (step.num_passes, step.num_single_passes) == (1, 6)


def test_a_norm_without_instances_is_that_of_a_smaller_step(step):
    block = step._block
    smaller = StepGradient(step._model, block.slice(2, 5), "mlm+nsp", 1.0, 1000)
    assert step.norm_without([0, 1, 5]) == pytest.approx(smaller.norm_without([]), rel=1e-5)


def test_a_checkpoint_that_skips_the_step_does_not_serve():
    """Step 5 at positions 48 to 60 was undone; the run then went on from step 4."""

    def position(number, at, skipped=()):
        state = StreamState(at, 0, 1, "train", 16, skipped, ()).to_dict()
        return SimpleNamespace(step=number, streams={"16": state})

    run = SimpleNamespace(
        positions={
            "step-00000002": position(2, 24),
            "step-00000004": position(4, 72, ((36, 60),)),
            "step-00000006": position(6, 96, ((36, 60),)),
        }
    )
    undone = SimpleNamespace(step=5, seq_len=16, position=48)
    assert choose_checkpoint(run, undone) == "step-00000002"
    assert choose_checkpoint(run, SimpleNamespace(step=5, seq_len=16, position=72)) == (
        "step-00000004"
    )
    assert choose_checkpoint(run, SimpleNamespace(step=2, seq_len=16, position=12)) is None


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run of 32 steps on instances that are all alike, but for every 40th."""
    folder = tmp_path_factory.mktemp("blame")
    shards = {
        ("train", 16, 0, bucket): [monotonous_block(240, [*range(7, 240, 40)], bucket)]
        for bucket in range(2)
    }
    settings = {"lower_case": True, "seed": 0, "whole_word_masking": False}
    settings |= {"masked_lm_prob": 0.15, "max_predictions": 2}
    data = write_dataset(folder / "data", shards, 60, settings)
    phase = {"seq_len": 16, "global_batch": 12, "steps": 32, "peak_lr": 0.02, "warmup_steps": 2}
    often = {"checkpoint": {"interval": 8, "keep": 0}, "safety": {"spike_factor": 0}}
    often |= {"model": {"preset": "tiny", "overrides": TINY}, "cache_dir": str(folder / "cache")}
    launch(OURS, write_config(folder / "run", data, phases=[phase], **often), 1)
    return folder


def ask(run, *flags):
    """The records of an answer, and all that was said."""
    said = launch(OURS, ["ask", str(run), "--format", "jsonl", "--origins", "false", *flags], 1)
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")], said


@pytest.mark.engines
def test_planted_documents_are_blamed(place):
    records, _ = ask(place / "run", "--step", "24-32")
    bad = {}
    for record in records:
        if record["kind"] == "instance" and int(record["document_a"], 16) >= BAD:
            bad.setdefault(record["step"], []).append(record["document_a"])
    one = next(step for step, documents in bad.items() if len(documents) == 1)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    records, said = ask(place / "run", "--blame", str(one))
    begin = (one - 1) // 8 * 8
    assert f"{one - 1 - begin} steps are made again from step-{begin:08d}" in said
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    [blame] = [record for record in records if record["kind"] == "blame"]
    halves = [record for record in records if record["kind"] == "half"]
    culprits = [record for record in records if record["kind"] == "culprit"]
    assert blame["norm_with_dropout"] == pytest.approx(blame["recorded_norm"], rel=1e-4)
    assert blame["single_passes"] == 12
    assert blame["passes"] == 2 + len(halves) + 1 + len(culprits)
    assert [culprits[0]["document_a"]] == bad[one]
    assert culprits[0]["share"] > 0.5
    assert culprits[0]["norm_without_first"] < blame["norm"] / 2
    last = min(halves[-2:], key=lambda half: half["norm_without"])
    assert last["first_slot"] == last["last_slot"] == culprits[0]["slot"]
    assert last["norm_without"] == culprits[0]["norm_without_first"]


@pytest.mark.engines
def test_two_ranks_add_up_to_the_norm_that_was_recorded(place, tmp_path):
    phase = {"seq_len": 16, "global_batch": 12, "steps": 4, "peak_lr": 0.02, "warmup_steps": 2}
    settings = {"model": {"preset": "tiny", "overrides": TINY}, "zero_stage": 1}
    settings |= {"checkpoint": {"interval": 2, "keep": 0}, "cache_dir": str(place / "cache")}
    words = write_config(tmp_path / "run", place / "data", phases=[phase], **settings)
    launch(OURS, words, 2)
    flags = ["--format", "jsonl", "--origins", "false", "--blame", "4"]
    said = launch(OURS, ["ask", str(tmp_path / "run"), *flags], 2)
    [blame] = [json.loads(line) for line in said.splitlines() if '"kind": "blame"' in line]
    assert (blame["begin"], blame["steps_made"]) == ("step-00000002", 1)
    assert blame["norm_with_dropout"] == pytest.approx(blame["recorded_norm"], rel=1e-4)
