import json
import math

import numpy as np
import pytest

from trainer.pretrain.validation import ValidationSet, join_columns
from trainer.runs.metrics import MetricsFile, loss_columns, unigram_entropy


def test_columns_are_means_over_global_counts():
    sums = {"mlm_nll": 30.0, "nsp_nll": 4.0, "num_mlm_correct": 2.0, "num_nsp_correct": 3.0}
    columns = loss_columns(sums, masked=10, instances=4)
    mlm, nsp = {"mlm_loss": 3.0, "mlm_accuracy": 0.2}, {"nsp_loss": 1.0, "nsp_accuracy": 0.75}
    assert columns == {"loss": 4.0, **mlm, **nsp}


def test_columns_of_a_mixture_are_weighted_means_of_measures_that_all_datasets_have():
    counts = {"instances": 10, "masked": 30}
    parts = {
        "wiki": {"mlm_loss": 1.0, "nsp_accuracy": 0.5} | counts,
        "books": {"mlm_loss": 5.0, "pos_accuracy": 0.25} | counts,
    }
    wiki = ValidationSet("wiki", 3, [], {})
    books = ValidationSet("books", 1, [], {})
    joined = {"mlm_loss": 2.0, "instances": 20, "masked": 60}
    assert join_columns(parts, [wiki, books]) == joined
    assert join_columns(parts, [books, wiki]) == joined
    assert join_columns(parts, [books]) == parts["books"]


def test_unigram_entropy_of_known_distributions():
    assert unigram_entropy(np.array([0, 5, 5, 5, 5])) == pytest.approx(math.log(4))
    assert unigram_entropy(np.array([0, 7, 0])) == pytest.approx(0.0)
    expected = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    assert unigram_entropy(np.array([1, 3])) == pytest.approx(expected)


def test_numbers_that_are_not_finite_are_null(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.append({"step": 1, "loss": math.nan, "grad_norm": np.float64("inf"), "lr": 0.5})
    of_wiki = {"loss": -math.inf, "epochs": [1.0, math.nan]}
    metrics.append({"step": 2, "loss": 1e308, "datasets": {"wiki": of_wiki}})
    assert metrics.path.read_text() == (
        '{"step": 1, "loss": null, "grad_norm": null, "lr": 0.5}\n'
        '{"step": 2, "loss": 1e+308, "datasets": {"wiki": {"loss": null, "epochs": [1.0, null]}}}\n'
    )


def test_a_file_of_an_earlier_version_with_nan_is_continued(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.path.write_text('{"step": 1, "loss": NaN}\n{"step": 2, "loss": Infinity}\n')
    metrics.cut_after(1)
    metrics.append({"step": 2, "loss": math.nan})
    assert metrics.path.read_text() == '{"step": 1, "loss": NaN}\n{"step": 2, "loss": null}\n'
    assert metrics.find_row(2, "loss") == {"step": 2, "loss": None}


def test_rows_after_the_step_resumed_from_are_cut(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.cut_after(0)
    for step in (1, 2, 2, 3):
        metrics.append({"step": step, "loss": 0.5})
    with metrics.path.open("a") as file:
        file.write('{"step": 1, "lo')  # torn by a kill
    metrics.cut_after(2)
    assert [json.loads(line)["step"] for line in metrics.path.read_text().splitlines()] == [1, 2, 2]


@pytest.mark.parametrize(
    "line",
    ["", "{", '{"step": 1, "lo', "[1]", '{"stop": 1}', '{"step": "1"}', "\x00\x00\x00", "null"],
)
def test_a_damaged_row_is_named_and_left(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + line + '\n{"step": 2}\n')
    before = path.read_bytes()
    said = r"metrics\.jsonl, line 2 is no row: .*; restore the file, or remove the line"
    with pytest.raises(ValueError, match=said):
        MetricsFile(path).cut_after(1)
    assert path.read_bytes() == before
