"""Metrics against numbers worked by hand, means over seeds, the table, and what is refused."""

import json
import re
from types import SimpleNamespace

import pytest

from trainer.finetune.batches import Recipe
from trainer.finetune.measures import accuracy, f1, macro_f1, matthews, pearson, spearman
from trainer.finetune.results import find_precision, format_table, read_finished, summarize
from trainer.runs.continuing import lock_folder

FOUND = ["1", "1", "1", "0", "0", "1"]
EXPECTED = ["1", "0", "1", "0", "1", "1"]


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


@pytest.mark.parametrize("old_first", [True, False])
def test_runs_that_were_made_before_a_metric_existed_are_named(old_first):
    old = run(16, 0, 0.5, 0.25)
    new = run(16, 1, 0.75, 0.25)
    for metrics in new["metrics"].values():
        metrics["f1"] = 0.5
    says = r"runs/batch16-seed0\.json (has the metrics )?accuracy(,|:).*delete the older file"
    with pytest.raises(ValueError, match=says):
        summarize([old, new] if old_first else [new, old])


def test_a_run_that_was_made_before_the_main_metric_existed_is_named(tmp_path):
    recipe = Recipe(16, 2e-5, 3, seed=0)
    path = tmp_path / "runs" / f"{recipe.name}.json"
    path.parent.mkdir()
    path.write_text(json.dumps(run(16, 0, 0.5, 0.25) | {"made_with": {}}))
    task = SimpleNamespace(main_metric="f1")
    prepared = SimpleNamespace(task=task, files={"validation": [SimpleNamespace(name="matched")]})
    says = r"seed0\.json lacks the metric f1, .*; delete it, and this run is made again"
    with pytest.raises(ValueError, match=says):
        read_finished(tmp_path, [recipe], prepared, {})


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"name": 3}, "name is 3, expected a text"),
        ({"epochs": "x"}, "epochs is 'x', expected a whole number"),
        ({"peak_lr": None}, "peak_lr is None, expected a number"),
        ({"metrics": 3}, "metrics is 3, expected an object"),
        ({"metrics": {"matched": 3}}, "metrics.matched is 3, expected an object"),
        ({"metrics": {"matched": {"accuracy": "x"}}}, "accuracy is 'x', expected a number"),
        ({"metrics": {"other": {"accuracy": 0.5}}}, "metrics lacks matched"),
        ({"made_with": []}, "made_with is [], expected an object"),
    ],
)
def test_values_of_wrong_types_are_named(tmp_path, changed, says):
    recipe = Recipe(16, 2e-5, 3, seed=0)
    path = tmp_path / "runs" / f"{recipe.name}.json"
    path.parent.mkdir()
    path.write_text(json.dumps(run(16, 0, 0.5, 0.25) | changed))
    task = SimpleNamespace(main_metric="accuracy")
    prepared = SimpleNamespace(task=task, files={"validation": [SimpleNamespace(name="matched")]})
    with pytest.raises(ValueError, match=f"{re.escape(str(path))} .*{re.escape(says)}"):
        read_finished(tmp_path, [recipe], prepared, {})


def test_a_value_that_a_run_lacks_is_named(tmp_path):
    path = tmp_path / "runs" / "a.json"
    path.parent.mkdir()
    content = run(16, 0, 0.5, 0.25)
    del content["epochs"]
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"a\.json is damaged: epochs is missing; delete it"):
        find_precision(tmp_path)
    path.write_text(json.dumps(run(16, 0, 0.5, 0.25) | {"made_with": {"precision": 3}}))
    with pytest.raises(ValueError, match=r"a\.json is damaged: precision is 3, expected fp32 or"):
        find_precision(tmp_path)


def test_a_best_model_that_was_damaged_is_named(tmp_path):
    (tmp_path / "best").mkdir()
    (tmp_path / "best/config.json").write_text('{"beambert": {"finetuned": 3}}')
    says = r"best is damaged: config.json.beambert.finetuned is 3, expected an object; delete"
    prepared = SimpleNamespace(
        task=SimpleNamespace(main_metric="accuracy"),
        files={"validation": [SimpleNamespace(name="matched")]},
    )
    with pytest.raises(ValueError, match=says):
        read_finished(tmp_path, [], prepared, {})


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
    path.write_text(json.dumps(run(16, 0, 0.5, 0.25) | {"made_with": {"seq_len": 16}}))
    with pytest.raises(ValueError, match="other settings: seq_len was 16 and is now 12"):
        read_finished(tmp_path, [recipe], None, {"seq_len": 12})


def test_worked_by_hand():
    # 3 true positives, 1 false positive, 1 false negative, 1 true negative.
    assert accuracy(FOUND, EXPECTED) == pytest.approx(4 / 6)
    assert f1(FOUND, EXPECTED, "1") == pytest.approx(2 * 3 / (4 + 4))
    assert f1(FOUND, EXPECTED, "0") == pytest.approx(2 * 1 / (2 + 2))
    assert macro_f1(FOUND, EXPECTED) == pytest.approx((0.75 + 0.5) / 2)
    # 3 by 1 less 1 by 1, over the root of 4 by 4 by 2 by 2.
    assert matthews(FOUND, EXPECTED) == pytest.approx(2 / 8)


def test_matthews_of_three_classes_by_hand():
    found, expected = ["a", "b", "c", "a"], ["a", "b", "b", "c"]
    # Gorodkin: (c * s - sum p t) / sqrt((s^2 - sum p^2) (s^2 - sum t^2)), c = 2 right of s = 4.
    right = 2 * 4 - (2 * 1 + 1 * 2 + 1 * 1)
    assert matthews(found, expected) == pytest.approx(right / ((16 - 6) * (16 - 6)) ** 0.5)


def test_one_class_on_one_side_correlates_with_nothing():
    assert matthews(["1", "1"], ["0", "1"]) == 0.0
    assert f1(["0", "0"], ["0", "0"], "1") == 0.0
    assert pearson([1.0, 1.0], [0.0, 2.0]) == 0.0


def test_correlations_by_hand():
    found, expected = [1.0, 2.0, 3.0, 10.0], [2.0, 1.0, 3.0, 4.0]
    # Deviations -3 -2 -1 6 and -0.5 -1.5 0.5 1.5: products are 13 in sum, squares 50 and 5.
    assert pearson(found, expected) == pytest.approx(13 / 250**0.5)
    # Ranks 1 2 3 4 and 2 1 3 4: 1 - 6 * 2 / (4 * 15).
    assert spearman(found, expected) == pytest.approx(0.8)
    # Equal values share rank 1.5; ranks 1.5 1.5 3 against 1 2 3: deviations -0.5 -0.5 1 and -1 0 1.
    assert spearman([5.0, 5.0, 9.0], [1.0, 2.0, 3.0]) == pytest.approx(1.5 / (1.5 * 2) ** 0.5)
