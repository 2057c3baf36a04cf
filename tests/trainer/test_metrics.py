import json
import math

import numpy as np
import pytest

from trainer.runs.metrics import (
    MetricsFile,
    format_steps,
    loss_columns,
    majority_share,
    unigram_entropy,
)
from trainer.runs.run_folder import RunFolder
from trainer.settings import PretrainSettings
from trainer.watch.recorder import open_recorder


def test_columns_are_means_over_global_counts():
    columns = loss_columns([30.0, 4.0, 2.0, 3.0], masked=10, instances=4)
    assert columns == {
        "loss": 4.0,
        "mlm_loss": 3.0,
        "mlm_accuracy": 0.2,
        "nsp_loss": 1.0,
        "nsp_accuracy": 0.75,
    }


@pytest.mark.parametrize(("num_random", "expected"), [(56, 0.56), (44, 0.56), (0, 1.0), (50, 0.5)])
def test_a_constant_answer_is_the_commoner_one(num_random, expected):
    assert majority_share(num_random, 100) == expected


def test_unigram_entropy_of_known_distributions():
    assert unigram_entropy(np.array([0, 5, 5, 5, 5])) == pytest.approx(math.log(4))
    assert unigram_entropy(np.array([0, 7, 0])) == pytest.approx(0.0)
    assert unigram_entropy(np.array([1, 3])) == pytest.approx(
        -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    )


def test_rows_after_the_step_resumed_from_are_cut(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.cut_after(0)
    for step in (1, 2, 2, 3):
        metrics.append({"step": step, "loss": 0.5})
    with metrics.path.open("a") as file:
        file.write('{"step": 1, "lo')  # torn by a kill
    metrics.cut_after(2)
    assert [json.loads(line)["step"] for line in metrics.path.read_text().splitlines()] == [1, 2, 2]


def test_steps_without_a_row_are_told_and_nothing_else_changes(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    for step in (1, 2, 5, 6, 6, 9):
        metrics.append({"step": step, "split": "train"})
    metrics.append({"step": 3, "split": "validation"})
    assert metrics.cut_after(6) == [3, 4]
    assert metrics.cut_after(8) == [3, 4, 7, 8], "the rows end before the step"
    metrics.path.unlink()
    assert metrics.cut_after(3) == [1, 2, 3]
    assert metrics.cut_after(0) == []


@pytest.mark.parametrize(
    "line",
    ["", "{", '{"step": 1, "lo', "[1]", '{"stop": 1}', '{"step": "1"}', "\x00\x00\x00", "null"],
)
def test_a_damaged_row_is_named_and_left(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + line + '\n{"step": 2}\n')
    before = path.read_bytes()
    with pytest.raises(
        ValueError,
        match=r"metrics\.jsonl, line 2 is no row: .*; restore the file, or remove the line",
    ):
        MetricsFile(path).cut_after(1)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([4], "step 4"),
        ([1, 2], "steps 1-2"),
        ([3, 4, 5, 9, 11, 12], "steps 3-5, 9, 11-12"),
        ([1, 3, 5, 7, 9, 11, 13], "steps 1, 3, 5, 7, 9 and 2 more stretches"),
    ],
)
def test_steps_for_people(steps, text):
    assert format_steps(steps) == text


def test_a_run_that_goes_on_says_which_rows_are_missing(tmp_path):
    settings = PretrainSettings(data=["d"], output="o", phases=[])
    said, folder = [], RunFolder(tmp_path)
    for step in (1, 4):
        MetricsFile(folder.metrics).append({"step": step, "split": "train"})
    open_recorder(folder, settings, 6, said.append).close()
    assert said == [
        f"{tmp_path}/metrics.jsonl lacks the rows of steps 2-3, 5-6: it was cut or edited. Curves have a gap,"
        " and nothing else is lost: training goes on"
    ]
    open_recorder(folder, settings, 1, said.append).close()
    assert len(said) == 1
