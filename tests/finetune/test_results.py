"""Means over seeds, the table, and what is refused."""

import pytest

from trainer.finetune.batches import Recipe
from trainer.finetune.results import format_table, read_finished, summarize
from trainer.runs.continuing import lock_folder


def run(global_batch, seed, matched, mismatched):
    metrics = {"matched": {"accuracy": matched}, "mismatched": {"accuracy": mismatched}}
    setting = {"global_batch": global_batch, "peak_lr": 2e-5, "epochs": 3, "seed": seed}
    return {"name": f"batch{global_batch}-seed{seed}", **setting, "metrics": metrics}


def test_means_and_deviations_of_several_files():
    runs = [run(16, 0, 0.5, 0.25), run(16, 1, 0.75, 0.25), run(32, 0, 0.625, 0.5)]
    first, second = summarize(runs)
    assert (first["global_batch"], first["peak_lr"], first["num_seeds"]) == (16, 2e-5, 2)
    assert first["mean"] == {"matched": {"accuracy": 0.625}, "mismatched": {"accuracy": 0.25}}
    deviation = {"matched": {"accuracy": 0.125 * 2**0.5}, "mismatched": {"accuracy": 0.0}}
    assert first["standard_deviation"] == deviation
    assert second["standard_deviation"]["matched"] == {"accuracy": None}
    assert format_table([first, second], runs[1]).splitlines() == [
        "batch  learning rate  epochs  seeds  matched accuracy  mismatched accuracy",
        "16     2e-05          3       2 *    0.6250 +- 0.1768  0.2500 +- 0.0000",
        "32     2e-05          3       1      0.6250            0.5000",
        "* has the best run, batch16-seed1",
    ]


def test_an_output_that_is_a_file_is_refused_by_name(tmp_path):
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n")
    with pytest.raises(FileExistsError, match=r"dev\.tsv is a file, expected a folder"):
        lock_folder(tmp_path / "dev.tsv")


def test_runs_of_other_settings_and_damaged_ones_are_named(tmp_path):
    recipe = Recipe(16, 2e-5, 3, seed=0)
    path = tmp_path / "runs" / f"{recipe.name}.json"
    path.parent.mkdir()
    path.write_text('{"made_with": {"seq_len": 16}, "metr')
    says = r"seed0\.json is damaged.*delete it, and this run is made"
    with pytest.raises(ValueError, match=says):
        read_finished(tmp_path, [recipe], None, {"seq_len": 16})
    path.write_text('{"made_with": {"seq_len": 16}}')
    with pytest.raises(ValueError, match="other settings: seq_len was 16 and is now 12"):
        read_finished(tmp_path, [recipe], None, {"seq_len": 12})
