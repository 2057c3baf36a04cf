"""Training on instances of one segment, [CLS] A [SEP], and all that looks at such a run."""

import json
from dataclasses import replace

import numpy as np
import pytest

from pipeline.shards.dataset import open_dataset
from tests.datasets import write_dataset
from tests.trainer.tiny_dataset import random_block, write_tiny_dataset
from tests.trainer.tiny_run import rows_of, write_config
from trainer.cli import main
from trainer.inference.evaluate import evaluate, format_evaluation
from trainer.inference.open_model import open_model
from trainer.stream.batches.pack import pack_micro_batches

pytestmark = pytest.mark.processes
SETTINGS = {"lower_case": True, "seed": 0, "whole_word_masking": False}
SETTINGS |= {"masked_lm_prob": 0.15, "max_predictions": 2, "instances": "single-sentence"}


def single_block(num_instances, seed):
    """Instances of `random_block` whose inner [SEP] is a word, so that they have one segment."""
    block = random_block(np.random.default_rng(seed), num_instances, 16, 60)
    input_ids = block.input_ids.copy()
    input_ids[block.offsets[:-1] + block.segment_a_length - 1] = 7
    return replace(
        block,
        input_ids=input_ids,
        segment_a_length=block.lengths.astype(np.uint16),
        is_random_next=np.zeros(num_instances, bool),
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A dataset of single segments, one of pairs with the same vocabulary, and a run on the first.

    Its masks are drawn anew.
    """
    path = tmp_path_factory.mktemp("one")
    shards = {("train", 16, 0, bucket): [single_block(150, bucket)] for bucket in (0, 1)}
    shards["validation", 16, 0, 0] = [single_block(40, 2)]
    write_dataset(path / "single", shards, 60, SETTINGS)
    write_tiny_dataset(path / "pairs", has_validation=False)
    words = write_config(
        path / "run", path / "single", objective="mlm", masking="0.3", micro_tokens=96,
        validation={"interval": 2}, checkpoint={"interval": 2, "keep": 4},
    )  # fmt: skip
    assert main(words) == 0
    return path


def test_next_sentence_prediction_is_refused_before_anything_is_written(place, tmp_path, capsys):
    words = write_config(tmp_path / "run", place / "pairs")
    for command in ("pretrain", "plan"):
        for data in ([place / "single"], [place / "pairs", place / "single"]):
            assert main([command, *words[1:], "--data", *map(str, data)]) == 2
            said = capsys.readouterr().err
            assert f"{place}/single: its instances (single-sentence) have one segment" in said
            assert "(objective mlm+nsp) cannot be learned; give --objective mlm, or data" in said
    assert not (tmp_path / "run").exists()
    flags = ("--data", str(place / "pairs"), str(place / "single"), "--objective", "left-to-right")
    assert main(["plan", *words[1:], *flags]) == 0


def test_token_types_and_masks_are_those_of_one_segment(place, capsys):
    block = single_block(150, 0)
    [batch] = pack_micro_batches(block, [(0, 150)])
    assert not batch.token_type_ids.any()
    assert not batch.is_random_next.any()
    texts = {bytes(row) for bucket in (0, 1) for row in _restored(single_block(150, bucket))}
    assert main(["ask", str(place / "run"), "--step", "1-4", "--format", "jsonl"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    instances = [record for record in records if record["kind"] == "instance"]
    assert len(instances) == 48
    for record in instances:
        ids = record["input_ids"]
        positions = record["masked_lm_positions"]
        assert record["segment_a_length"] == len(ids)
        assert record["b"] == []
        assert len(positions) == round(0.3 * len(ids))
        assert {0, len(ids) - 1}.isdisjoint(positions)
        for position, label in zip(positions, record["masked_lm_ids"], strict=True):
            ids[position] = label
        assert np.array(ids, np.uint16).tobytes() in texts


def _restored(block):
    ids = block.input_ids.copy()
    ids[block.masked_indices] = block.masked_lm_ids
    return np.split(ids, block.offsets[1:-1])


def test_numbers_and_pages_have_no_next_sentence(place, capsys):
    rows = rows_of(place / "run") + rows_of(place / "run", "validation")
    assert len(rows) == 6
    assert not [name for row in rows for name in row if "nsp" in name]
    assert main(["report", str(place / "run")]) == 0
    page = (place / "run/report.html").read_text()
    assert "NSP" not in page
    assert f"data: single at {place}/single, root hash" in page
    assert ", single-sentence" in page
    data = open_dataset(str(place / "single"))
    found = evaluate(open_model(str(place / "run")), data, "validation", 16)
    assert "nsp_loss" not in found
    assert "NSP" not in format_evaluation(found)
    capsys.readouterr()
    document = f"{int(single_block(150, 0).document_a[7]):016x}"
    assert main(["ask", str(place / "run"), "--document", document]) == 0
    said = capsys.readouterr().out
    assert "A and B" not in said
    assert "random B" not in said
    assert main(["ask", str(place / "run"), "--step", "2", "--format", "html"]) == 0
    page = (place / "run/ask.html").read_text()
    assert "one segment" in page
    assert "<b>B</b>" not in page


def test_a_model_with_an_nsp_head_is_evaluated_without_it(place, tmp_path):
    """Trained on pairs, with next sentence prediction."""
    assert main(write_config(tmp_path / "run", place / "pairs")) == 0
    opened = open_model(str(tmp_path / "run"))
    assert opened.provenance["objective"] == "mlm+nsp"
    found = evaluate(opened, open_dataset(str(place / "single")), "validation", 16)
    assert found["masked"] == 80
    assert not [name for name in found if "nsp" in name]


def test_run_and_card_say_what_the_instances_are(place, tmp_path):
    facts = json.loads((place / "run/run.json").read_text())
    assert facts["datasets"][0]["instances"] == "single-sentence"
    assert main(["export", str(place / "run"), "--output", str(tmp_path / "hf")]) == 0
    card = (tmp_path / "hf/README.md").read_text()
    assert "| objective | mlm |\n| instances | single-sentence |\n" in card
