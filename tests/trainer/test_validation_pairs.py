"""`validation.pairs`: a run is measured on minimal pairs, and trains as it does without them."""

import json

import pytest

from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import OURS, TINY, launch, rows_of, write_config
from trainer.cli import main
from trainer.inference.evaluate_pairs import evaluate_pairs
from trainer.inference.open_model import open_model
from trainer.minimal_pairs.read import read_pairs
from trainer.watch.recorder import MEASURED

pytestmark = pytest.mark.engines

PAIRS = [("w1 w2 w3", "w3 w2"), ("w4 w5", "w5 w4"), ("w1 w9 w8 w7", "w1"), ("w2 w2", "w2 w3")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs of two ranks with dropout, which draws random numbers, with pairs and without."""
    path = tmp_path_factory.mktemp("pairs")
    write_tiny_dataset(path / "data")
    write_tiny_dataset(path / "bare", has_validation=False)
    rows = [
        {"sentence_good": good, "sentence_bad": bad, "UID": "u", "linguistics_term": f"t{n % 2}"}
        for n, (good, bad) in enumerate(PAIRS)
    ]
    (path / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    dropout = {"preset": "tiny", "overrides": TINY}
    for name, pairs in (("with", str(path / "pairs.jsonl")), ("without", None)):
        settings = {"validation": {"interval": 2, "pairs": pairs}, "model": dropout}
        launch(OURS, write_config(path / name, path / "data", **settings), 2)
    return path


def test_losses_are_equal_to_the_last_bit(folder):
    for split in ("train", "validation"):
        ours, others = (
            rows_of(folder / name, split, left_out=MEASURED) for name in ("with", "without")
        )
        for row in ours:
            for column in [column for column in row if column.startswith("pairs")]:
                assert split == "validation"
                row.pop(column)
        assert ours == others


def test_rows_have_what_evaluate_finds_in_the_checkpoint(folder):
    rows = rows_of(folder / "with", "validation")
    assert [row["step"] for row in rows] == [2, 4]
    found = evaluate_pairs(
        open_model(str(folder / "with")), read_pairs(str(folder / "pairs.jsonl"))
    )
    last = rows[-1]
    assert (last["pairs"], last["pairs_accuracy"]) == (4, found.total.accuracy)
    assert last["pairs_mean_accuracy"] == found.mean
    assert last["pairs_groups"] == {each.group[0]: each.accuracy for each in found.coarsest}
    assert last["pairs_standard_error_of_mean"] == found.standard_error_of_mean


def test_an_export_has_what_was_measured_at_its_step(folder, tmp_path):
    run = folder / "with"
    row = rows_of(run, "validation")[-1]
    measured = open_model(str(run)).provenance["minimal_pairs"]
    assert (measured["file"], measured["num_pairs"]) == ("pairs.jsonl", 4)
    assert measured["accuracy"] == row["pairs_accuracy"]
    assert measured["groups"] == row["pairs_groups"]
    assert "minimal_pairs" not in open_model(str(folder / "without")).provenance
    assert main(["export", str(run), "--output", str(tmp_path / "hf")]) == 0
    card = (tmp_path / "hf/README.md").read_text()
    assert f"| all of pairs.jsonl | 4 | {100 * row['pairs_accuracy']:.1f} % |" in card


def test_zero_3_makes_equal_passes_and_needs_no_held_out_text(folder, tmp_path):
    """Eight sentences of 2 to 4 words are 5 batches for two ranks, so one has an empty batch."""
    chosen = {"pairs": str(folder / "pairs.jsonl"), "pairs_limit": 2, "interval": 0}
    settings = {"validation": chosen, "zero_stage": 3, "micro_tokens": 24}
    said = launch(OURS, write_config(tmp_path / "run", folder / "bare", **settings), 2)
    assert "4 minimal pairs: each measurement reads" in said
    assert "minimal pairs " in said
    [row] = rows_of(tmp_path / "run", "validation")
    assert row["pairs"] == 4
    found = evaluate_pairs(open_model(str(tmp_path / "run")), read_pairs(chosen["pairs"]))
    assert row["pairs_mean_accuracy"] == found.mean


def test_bad_pairs_end_the_run_before_it_trains(folder, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"sentence_good": "w1"}\n')
    settings = {"validation": {"pairs": str(tmp_path / "bad.jsonl")}}
    arguments = write_config(tmp_path / "run", folder / "data", **settings)
    said = launch(OURS, arguments, 2, expected=2)
    assert "bad.jsonl:1: has no sentence_bad, found sentence_good" in said
    assert not (tmp_path / "run").exists()
