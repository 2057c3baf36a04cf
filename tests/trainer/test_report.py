"""The page of curves: what is read, what is drawn, what is said of runs that are odd."""

import copy
import json

import pytest

from trainer.cli import main
from trainer.watch.page import render_page
from trainer.watch.read_run import read_runs

FACTS = {"launches": [{"time": "2026-01-01", "host": "node1"}], "datasets": []}


def write_run(folder, rows=None, facts=FACTS):
    folder.mkdir(parents=True)
    rows = [step_row(step) for step in range(1, 11)] if rows is None else rows
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (folder / "run.json").write_text(json.dumps(facts))
    return folder


def step_row(step, **changed):
    row = {"step": step, "split": "train", "mlm_loss": 10.0 - step, "grad_norm": 1.0, "mfu": None}
    row |= {"tokens": 50, "tokens_per_second": 100.0 * step, "seconds": 0.5, "learning_rate": 1e-4}
    return row | {"peak_memory_bytes": 2_000_000_000, "data_wait_share": 0.0} | changed


def page_of(folder):
    return render_page(read_runs([str(folder)]))


def test_the_command_writes_the_page_into_the_first_run(tmp_path, capsys):
    first, second = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    assert main(["report", str(first), str(second)]) == 0
    assert capsys.readouterr().out == f"{first / 'report.html'}: 20 steps of 2 run(s)\n"
    assert "2 training runs" in (first / "report.html").read_text()
    assert main(["report", str(first), "--output", str(tmp_path / "x.html")]) == 0
    assert "<h1>Training run</h1>" in (tmp_path / "x.html").read_text()


def test_curves_and_last_numbers(tmp_path):
    rows = [step_row(step, phase=step // 10) for step in range(1, 21)]
    measured = {"mlm_loss": 3.25, "unigram_entropy": 6.125, "nsp_majority_share": 0.5625}
    measured |= {"pairs_mean_accuracy": 0.559, "pairs_groups": {"binding": 0.5}}
    rows += [{"step": 20, "split": "validation", "nsp_accuracy": 0.64, **measured}]
    page = page_of(write_run(tmp_path / "run", rows))
    for shown in (
        "<h3>MLM loss, nats</h3>",
        "<h3>Real tokens a second, all ranks</h3>",
        '<td class="n" data-name="MLM loss">-10</td>',  # the last twentieth is the last step
        '<td class="n" data-name="validation loss">3.25</td>',
        '<td class="n" data-name="tokens/s">1.05k</td>',  # the median of 100 to 2,000
        '<td class="n" data-name="peak memory">2 GB</td>',
        "run, unigram entropy: 6.12",
        "run, nsp majority share: 56.2 %",
        "<h3>Minimal pairs, mean accuracy; chance is 50 %</h3>",
        "run, validation: 55.9 %",
        "phase 2</text>",
        "phase 3</text>",
    ):
        assert shown in page
    assert 'data-name="MFU"' not in page
    assert "NSP loss" not in page  # no row has one


def test_text_from_runs_is_escaped(tmp_path):
    evil = "<script>alert(1)</script>\u202e"
    facts = {"launches": [{"time": evil}], "datasets": [{"name": evil, "url": evil}]}
    rows = [step_row(1, **{evil: 3.0}), {"step": 1, "split": evil, "note": evil}]
    page = page_of(write_run(tmp_path / "<b>&run", rows, facts))
    for word in ("<script", "\u202e", "<b>&run"):
        assert word not in page
    assert "&lt;b&gt;&amp;run" in page


def test_a_page_needs_nothing_else(tmp_path):
    page = page_of(write_run(tmp_path / "run"))
    assert "default-src 'none'; style-src 'unsafe-inline'" in page
    for word in ("<script", "http:", "https:", "<img", "<link", "@import", "url("):
        assert word not in page


def test_runs_that_are_odd_are_shown_and_said(tmp_path):
    rows = [
        *(step_row(1), step_row(2, mlm_loss=float("nan")), "not json", '{"step": 3, "spl', "[1]"),
        *(step_row(3, mlm_loss="text", grad_norm=None), step_row(2, mlm_loss=5.0)),
        {"step": 3, "split": "rolled back"},
    ]
    run = write_run(tmp_path / "odd", rows)
    anomaly = '{"step": 2, "grad_norm": "nan", "positions": [12, 24]}'
    (run / "anomalies.jsonl").write_text(f"{anomaly}\nno\n")
    (run / "run.json").write_text("{")
    [read] = read_runs([str(run)])
    assert [row["step"] for row in read.train] == [1, 2, 3]
    assert read.train[1]["mlm_loss"] == 5.0
    problems = "\n".join(read.problems)
    assert "metrics.jsonl: 3 line(s) are no row: 3, 4, 5" in problems
    assert "run.json is damaged, it is not JSON" in problems
    assert "anomalies.jsonl: 1 line(s) are no row: 2" in problems
    events = render_page([read]).partition("<h2>Events</h2>")[2]
    assert "rolled back" in events
    assert "grad_norm nan, positions [12, 24]" in events


def test_values_of_wrong_types_are_said_and_the_rest_is_shown(tmp_path, capsys):
    launch = {"time": "noon", "hardware": {"gpus": [3]}}
    facts = {"launches": [launch, 4], "datasets": {"name": "wiki"}, "masking": "0.3-0.15"}
    rows = [
        step_row(1),
        step_row(2, phase="one"),
        step_row(3) | {"step": 10**400},
        step_row(3, mfu=10**400),
    ]
    run = write_run(tmp_path / "run", rows, facts)
    (run / "config.yaml").write_text("phases: 3\noptimizer: {name: lamb}\n")
    assert main(["report", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    for said in (
        "run.json: launches[0].hardware.gpus[0] is 3, expected a text",
        "run.json: launches[1] is 4, expected an object",
        "run.json: datasets is {'name': 'wiki'}, expected a list",
        "config.yaml: phases is 3, expected a list",
        "metrics.jsonl: 2 line(s) are no row: 2, 3",
    ):
        assert f"{run}: {said}" in lines
    header = page_of(run).partition("</h1>")[2].partition("</p>")[0]
    assert header.endswith("<br>optimizer lamb<br>masking: 0.3-0.15<br>3 steps")


def places(value, place=()):
    yield place
    if isinstance(value, list):
        value = dict(enumerate(value))
    for key, each in value.items() if isinstance(value, dict) else ():
        yield from places(each, (*place, key))


def put(value, place, odd):
    if not place:
        return odd
    changed = copy.deepcopy(value)
    holder = changed
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = odd
    return changed


@pytest.mark.parametrize(
    "odd", [None, True, "x", [], {}, [[1]], -1, 0.5, 10**400, 1e308], ids=lambda odd: str(odd)[:6]
)
def test_no_value_of_a_runs_files_ends_in_a_traceback(tmp_path, odd):
    hardware = {"machine": "x86", "gpus": ["H100"]}
    launch = {"time": "t", "world_size": 2, "hardware": hardware, "software": {"torch": "2.10"}}
    data = {"name": "wiki", "url": "data", "root_hash": "01"}
    facts = {"model": MODEL, "launches": [launch], "datasets": [data], "masking": "static"}
    phase = {"seq_len": 128, "global_batch": 256, "steps": 900, "peak_lr": 0.001}
    settings = {"seed": 3, "optimizer": {"name": "lamb"}, "phases": [phase], "masking": "static"}
    validation = {"step": 2, "split": "validation", "nsp_accuracy": 0.5, "unigram_entropy": 6.0}
    files = {"run": facts, "config": settings, "train": step_row(1, phase=0), "last": validation}
    runs = []
    for place in places(files):
        if not place:
            continue
        changed = put(files, place, odd)
        rows = [changed["train"], step_row(2, phase=1), changed["last"]]
        runs.append(write_run(tmp_path / "-".join(map(str, place)), rows, changed["run"]))
        (runs[-1] / "config.yaml").write_text(json.dumps(changed["config"]))
    assert f"{len(runs)} training runs" in render_page(read_runs([str(run) for run in runs]))


def test_a_run_without_steps_beside_one_with_steps(tmp_path, capsys):
    young, old = write_run(tmp_path / "young", []), write_run(tmp_path / "old")
    assert main(["report", str(young), str(old), "--output", str(tmp_path / "page.html")]) == 0
    assert f"{young}: metrics.jsonl has no step yet" in capsys.readouterr().out
    assert main(["report", str(young), "--output", str(tmp_path / "page.html")]) == 0


@pytest.mark.parametrize(
    ("name", "message"), [("none", "is no folder"), ("empty", "holds neither")]
)
def test_what_is_no_run_is_refused(tmp_path, capsys, name, message):
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / name)]) == 2
    assert message in capsys.readouterr().err


CONFIG = """\
seed: 3
precision: bf16
optimizer: {name: lamb, eps: 1.0e-06}
phases:
- {seq_len: 128, global_batch: 256, steps: 900, peak_lr: 0.001}
- {seq_len: 512, global_batch: 64, steps: 100, peak_lr: 0.0005, warmup_steps: null}
skip: []
"""
MODEL = {"num_layers": 2, "hidden_size": 128, "num_heads": 2, "vocab_size": 30522}


def test_the_page_says_model_batch_rate_and_settings(tmp_path):
    launch = {"time": "t", "world_size": 2, "hardware": {"machine": "x86"}, "python": "3.11"}
    run = write_run(tmp_path / "run", facts=FACTS | {"model": MODEL, "launches": [launch]})
    (run / "config.yaml").write_text(CONFIG)
    page = page_of(run)
    header = page.partition("</h1>")[2].partition("</p>")[0].split("<br>")
    for line in (
        "model: 2 layers of 128, 2 heads, vocabulary of 30,522",
        "phase 1: length 128, batches of 256, steps 900, rate 0.001",
        "phase 2: length 512, batches of 64, steps 100, rate 0.0005",
        "optimizer lamb, precision bf16, seed 3",
        "2 rank(s) on x86",
        "Python 3.11",
    ):
        assert line in header
    settings = page.partition("<h2>Settings</h2>")[2]
    for name, value in (("phases[1].global_batch", "64"), ("optimizer.eps", "1e-06")):
        assert f">{name}</td>" in settings
        assert f">{value}</td>" in settings
    assert "skip" not in settings
    assert "warmup_steps" not in settings


def test_settings_that_cannot_be_read_are_said(tmp_path):
    run = write_run(tmp_path / "run", facts={"model": "big", "launches": [], "datasets": []})
    (run / "config.yaml").write_text("[" * 5_000)
    page = page_of(run)
    assert "config.yaml is damaged, it is not YAML" in page
    assert "<h2>Settings</h2>" not in page


def test_a_phase_of_one_run_is_not_drawn_for_all(tmp_path):
    two = [step_row(step, phase=step // 10) for step in range(1, 21)]
    one = [step_row(step, phase=0) for step in range(1, 21)]
    folders = [write_run(tmp_path / name, rows) for name, rows in (("a", two), ("b", one))]
    page = render_page(read_runs([str(folder) for folder in folders]))
    assert "a: phase 2</text>" in page
    assert ">phase 2</text>" not in page
    folders.append(write_run(tmp_path / "c", two))
    both = render_page(read_runs([str(folder) for folder in folders[::2]]))
    assert ">phase 2</text>" in both


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    runs = [write_run(tmp_path / "a" / "run"), write_run(tmp_path / "b" / "run")]
    assert [run.name for run in read_runs([str(run) for run in runs])] == ["a/run", "b/run"]


def test_the_header_says_what_is_read_and_how_far_it_has_come(tmp_path):
    data = {"name": "wiki", "url": "s3://bucket/data", "root_hash": "0123456789abcdef0123"}
    times = ("2026-01-01T10:00:00+00:00", "2026-01-02T11:00:00+00:00")
    facts = {"datasets": [data], "launches": [{"time": time} for time in times]}
    rows = [step_row(1, eta_seconds=0)]
    page = page_of(write_run(tmp_path / "run", rows, facts | {"masking": "0.3-0.15"}))
    header = page.partition("</h1>")[2].partition("</p>")[0]
    assert "data: wiki at s3://bucket/data, root hash 0123456789abcdef<br>" in header
    assert "<br>masking: 0.3-0.15<br>" in header
    assert "model" not in header
    assert "<br>started 2026-01-01T10:00:00+00:00, launched 2 times, last 2026-01-02" in header
    assert header.endswith("<br>finished after 1 steps")
