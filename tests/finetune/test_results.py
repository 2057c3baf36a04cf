"""Means over seeds, the table, and what is refused."""

import pytest

from trainer.finetune.batches import Recipe
from trainer.finetune.results import format_table, read_finished, summarize
from trainer.runs.continuing import lock_folder


def run(global_batch, seed, matched, mismatched=None):
    metrics = {"dev_matched": {"accuracy": matched}}
    if mismatched is not None:
        metrics["dev_mismatched"] = {"accuracy": mismatched}
    name = f"batch{global_batch}-seed{seed}"
    setting = {"global_batch": global_batch, "peak_lr": 2e-5, "epochs": 3, "seed": seed}
    return {"name": name, **setting, "metrics": metrics}


def test_means_and_deviations_of_several_files():
    runs = [run(16, 0, 0.5, 0.25), run(16, 1, 0.75, 0.25), run(32, 0, 0.625, 0.5)]
    summary = summarize(runs)
    assert summary[0] == {
        "global_batch": 16,
        "peak_lr": 2e-5,
        "epochs": 3,
        "num_seeds": 2,
        "mean": {"dev_matched": {"accuracy": 0.625}, "dev_mismatched": {"accuracy": 0.25}},
        "standard_deviation": {
            "dev_matched": {"accuracy": 0.125 * 2**0.5},
            "dev_mismatched": {"accuracy": 0.0},
        },
    }
    assert summary[1]["standard_deviation"] == {
        "dev_matched": {"accuracy": None},
        "dev_mismatched": {"accuracy": None},
    }
    assert format_table(summary, runs[1]).splitlines() == [
        "batch  learning rate  epochs  seeds  dev_matched accuracy  dev_mismatched accuracy",
        "16     2e-05          3       2 *    0.6250 +- 0.1768      0.2500 +- 0.0000",
        "32     2e-05          3       1      0.6250                0.5000",
        "* has the best run, batch16-seed1",
    ]


def test_one_file_needs_no_name():
    runs = [run(16, 0, 0.5)]
    assert (
        format_table(summarize(runs), runs[0]).splitlines()[0]
        == "batch  learning rate  epochs  seeds  accuracy"
    )


def test_an_output_that_is_a_file_is_refused_by_name(tmp_path):
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n")
    with pytest.raises(FileExistsError, match=r"dev\.tsv is a file, expected a folder"):
        lock_folder(tmp_path / "dev.tsv")


def test_runs_of_other_settings_and_damaged_ones_are_named(tmp_path):
    recipe = Recipe(16, 2e-5, 3, seed=0)
    path = tmp_path / "runs" / f"{recipe.name}.json"
    path.parent.mkdir()
    path.write_text('{"made_with": {"seq_len": 16}, "metr')
    with pytest.raises(
        ValueError, match=r"seed0\.json is damaged.*delete it, and this run is made"
    ):
        read_finished(tmp_path, [recipe], None, {"seq_len": 16})
    path.write_text('{"made_with": {"seq_len": 16}}')
    with pytest.raises(ValueError, match="other settings: seq_len was 16 and is now 12"):
        read_finished(tmp_path, [recipe], None, {"seq_len": 12})
