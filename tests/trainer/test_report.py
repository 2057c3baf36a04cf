"""The page of curves: what is read, what is drawn, what is said of runs that are odd."""

import json
import xml.etree.ElementTree as ET

import pytest
import yaml

from trainer.cli import main
from trainer.report.charts import other_charts
from trainer.report.lines import Axis, Curve, line_chart
from trainer.report.page import render_page
from trainer.report.read import read_runs


def write_run(folder, rows=None, *, config=None, facts=None):
    folder.mkdir(parents=True)
    rows = [step_row(step) for step in range(1, 11)] if rows is None else rows
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (folder / "config.yaml").write_text(
        yaml.safe_dump(config or {"seed": 0, "phases": [{"peak_lr": 0.1}]})
    )
    launch = {
        "time": "2026-01-01",
        "host": "node1",
        "world_size": 2,
        "argv": ["x", "pretrain"],
        "python": "3.11",
    }
    (folder / "run.json").write_text(json.dumps(facts or {"launches": [launch], "datasets": []}))
    return folder


def step_row(step, **changed):
    return {
        "step": step, "split": "train", "mlm_loss": 10.0 - step, "mlm_accuracy": 0.1, "nsp_accuracy": 0.5,
        "grad_norm": 1.0, "learning_rate": 1e-4, "tokens": 50, "tokens_per_second": 100.0 * step, "seconds": 0.5,
        "data_wait_share": 0.0, "peak_memory_bytes": 2_000_000_000, "mfu": None, "model_tflops_per_rank": 0.1,
        **changed,
    }  # fmt: skip


def page_of(*folders):
    return render_page(read_runs([str(folder) for folder in folders]))


def test_the_command_writes_the_page_into_the_first_run(tmp_path, capsys):
    first, second = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    assert main(["report", str(first), str(second)]) == 0
    assert capsys.readouterr().out == f"{first / 'report.html'}: 20 steps of 2 run(s)\n"
    assert "2 training runs" in (first / "report.html").read_text()
    assert main(["report", str(first), "--output", str(tmp_path / "x.html")]) == 0
    assert "<h1>Training run</h1>" in (tmp_path / "x.html").read_text()


def test_curves_and_last_numbers(tmp_path):
    rows = [step_row(step) for step in range(1, 21)]
    rows += [{"step": 20, "split": "validation", "mlm_loss": 3.25, "mlm_accuracy": 0.4}]
    page = page_of(write_run(tmp_path / "run", rows))
    for title in (
        "MLM loss, nats",
        "Gradient norm before clipping",
        "Learning rate",
        "Real tokens a second, all ranks",
    ):
        assert f"<h3>{title}</h3>" in page
    assert "<h3>MFU" not in page  # no run has one
    assert "<h3>Model TFLOP/s of a rank</h3>" in page
    assert ">-10<" in page  # the loss over the last twentieth, which is the last step
    assert ">3.25<" in page
    assert ">1.05k<" in page  # the median of 100 to 2,000 tokens a second


def test_only_settings_that_differ_are_compared(tmp_path):
    one = write_run(
        tmp_path / "one",
        config={"seed": 0, "phases": [{"peak_lr": 0.1}, {"peak_lr": 0.3}], "output": "a"},
    )
    two = write_run(
        tmp_path / "two", config={"seed": 0, "phases": [{"peak_lr": 0.2}], "output": "b"}
    )
    table = (
        page_of(one, two).partition("<h2>Settings that differ</h2>")[2].partition("</section>")[0]
    )
    assert "phases.0.peak_lr" in table
    assert "phases.1.peak_lr" in table
    assert "seed" not in table
    assert "output" not in table
    assert "The runs have the same settings." in page_of(
        one, write_run(tmp_path / "three", config=yaml_of(one))
    )


def yaml_of(run):
    return yaml.safe_load((run / "config.yaml").read_text())


def test_text_from_runs_is_escaped(tmp_path):
    evil = "<script>alert(1)</script>\u202e"
    facts = {
        "launches": [{"host": evil, "argv": ["x", evil], "time": evil}],
        "datasets": [{"name": evil, "url": evil}],
    }
    rows = [step_row(1, **{evil: 3.0}), {"step": 1, "split": evil, "note": evil}]
    page = page_of(write_run(tmp_path / "<b>&run", rows, config={evil: evil}, facts=facts))
    assert "<script" not in page
    assert "\u202e" not in page
    assert "<b>&run" not in page
    assert "&lt;b&gt;&amp;run" in page


def test_a_page_needs_nothing_else(tmp_path):
    page = page_of(write_run(tmp_path / "run"))
    assert "default-src 'none'; style-src 'unsafe-inline'" in page
    for word in ("<script", "http:", "https:", "<img", "<link", "@import", "url("):
        assert word not in page


def test_runs_that_are_odd_are_shown_and_said(tmp_path):
    rows = [
        step_row(1), step_row(2, mlm_loss=float("nan")), "not json", '{"step": 3, "spl', "[1]",
        step_row(3, mlm_loss="text", grad_norm=None), step_row(2, mlm_loss=5.0), {"step": 3, "split": "rolled back"},
    ]  # fmt: skip
    run = write_run(tmp_path / "odd", rows)
    (run / "anomalies.jsonl").write_text(
        '{"step": 2, "grad_norm": "nan", "positions": [12, 24]}\nno\n'
    )
    (run / "run.json").write_text("{")
    (run / "config.yaml").write_text("a: [")
    [read] = read_runs([str(run)])
    assert [row["step"] for row in read.train] == [1, 2, 3]
    assert read.train[1]["mlm_loss"] == 5.0
    problems = "\n".join(read.problems)
    assert "metrics.jsonl: 3 line(s) are no row: 3, 4, 5" in problems
    assert "1 step(s) were made again after going back" in problems
    assert "run.json cannot be read" in problems
    assert "config.yaml cannot be read" in problems
    page = render_page([read])
    assert "No settings could be read." in page
    assert "anomalies.jsonl: 1 line(s) are no row: 2" in problems
    events = page.partition("<h2>Events</h2>")[2]
    assert "rolled back" in events
    assert "grad_norm nan, positions [12, 24]" in events


def test_steps_without_a_row_are_said(tmp_path):
    rows = [step_row(step) for step in (1, 2, 5)]
    run = write_run(tmp_path / "cut", rows)
    assert read_runs([str(run)])[0].problems == [
        "metrics.jsonl lacks the rows of steps 3-4: it was cut or edited"
    ]
    for step, name in ((8, "COMMITTED"), (9, "state.json")):
        (run / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
        (run / "checkpoints" / f"step-{step:08d}" / name).touch()
    assert read_runs([str(run)])[0].problems == [
        "metrics.jsonl lacks the rows of steps 3-4, 6-8: it was cut or edited"
    ]
    assert "lacks the rows of steps 3-4, 6-8" in page_of(run)


def test_a_run_without_steps_beside_one_with_steps(tmp_path, capsys):
    young, old = write_run(tmp_path / "young", []), write_run(tmp_path / "old")
    assert main(["report", str(young), str(old), "--output", str(tmp_path / "page.html")]) == 0
    assert f"{young}: metrics.jsonl has no step yet" in capsys.readouterr().out
    assert main(["report", str(young), "--output", str(tmp_path / "page.html")]) == 0


@pytest.mark.parametrize(
    ("name", "message"), [("none", "is no folder"), ("empty", "holds neither run.json nor")]
)
def test_what_is_no_run_is_refused(tmp_path, capsys, name, message):
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / name)]) == 2
    assert message in capsys.readouterr().err


def test_a_run_named_twice_is_refused(tmp_path):
    run = write_run(tmp_path / "run")
    with pytest.raises(ValueError, match="is named twice"):
        read_runs([str(run), str(tmp_path / "x" / ".." / "run")])


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    runs = [write_run(tmp_path / "a" / "run"), write_run(tmp_path / "b" / "run")]
    assert [run.name for run in read_runs([str(run) for run in runs])] == ["a/run", "b/run"]


def test_columns_that_nobody_foresaw_get_charts(tmp_path):
    rows = [step_row(1, trust_ratio={"mean": 0.5, "max": 2.0}, epochs={"wiki": 0.1}, skipped=3)]
    found = other_charts(read_runs([str(write_run(tmp_path / "run", rows))]))
    assert [chart.title for chart in found] == ["trust ratio/mean", "trust ratio/max", "skipped"]


def marks(svg, tag):
    return [each for each in ET.fromstring(svg).iter() if each.tag == tag]


def test_long_curves_are_means_with_a_band():
    points = [(float(x), float(x % 2)) for x in range(10_000)]
    svg = line_chart("t", [Curve(0, "run", points)], Axis(), "step")
    [line], [band] = marks(svg, "polyline"), marks(svg, "polygon")
    heights = {float(pair.split(",")[1]) for pair in line.get("points").split()}
    assert len(line.get("points").split()) == 120
    assert len(band.get("points").split()) == 240
    assert max(heights) - min(heights) < 3  # means of about a half
    assert len(svg) < 60_000


def test_few_points_are_drawn_as_they_are_and_told_on_hover():
    svg = line_chart("t", [Curve(0, "run", [(1.0, 2.0), (2.0, 4.0)])], Axis(from_zero=True), "step")
    assert marks(svg, "polygon") == []
    [line] = marks(svg, "polyline")
    (x1, y1), (x2, y2) = (
        [float(n) for n in pair.split(",")] for pair in line.get("points").split()
    )
    assert (x1, x2, y2) == (54.0, 508.0, 10.0)
    assert y1 == pytest.approx((10 + 202) / 2)
    assert [title.text for title in marks(svg, "title")] == ["step 1\nrun: 2", "step 2\nrun: 4"]


@pytest.mark.parametrize(
    "values", [[0.0], [5.0], [1.0, 1.0], [-3.0, 2.0], [1e-12, 1e12], [1e300, 2e300], [0.0, 1e-300]]
)
def test_any_values_can_be_drawn(values):
    points = [(float(place), value) for place, value in enumerate(values)]
    for axis in (Axis(), Axis(from_zero=True), Axis(is_log=True)):
        svg = line_chart("t", [Curve(0, "run", points)], axis, "step")
        if svg:
            ET.fromstring(svg)
            assert "nan" not in svg
            assert "inf" not in svg


def test_a_logarithmic_axis_leaves_out_what_is_not_positive():
    svg = line_chart(
        "t", [Curve(0, "run", [(0.0, 0.0), (1.0, 1.0), (2.0, 10.0)])], Axis(is_log=True), "step"
    )
    [line] = marks(svg, "polyline")
    assert len(line.get("points").split()) == 2
    assert line_chart("t", [Curve(0, "run", [(0.0, -1.0)])], Axis(is_log=True), "step") == ""


def test_guesses_without_the_model_are_drawn_beside_what_it_reaches(tmp_path):
    measured = {"split": "validation", "mlm_loss": 5.0, "nsp_accuracy": 0.64}
    rows = [step_row(step) for step in range(1, 11)]
    rows += [{"step": 10, **measured, "unigram_entropy": 6.125, "nsp_majority_share": 0.5625}]
    page = page_of(write_run(tmp_path / "run", rows))
    assert "run, unigram entropy: 6.12" in page
    assert "run, constant answer: 56.25 %" in page


def test_a_guess_is_a_level_line_across_the_chart_and_no_chart_by_itself():
    guess = Curve(0, "run, guess", [(1.0, 2.0), (2.0, 4.0)], look="guess")
    svg = line_chart(
        "t", [Curve(0, "run", [(0.0, 0.0), (4.0, 4.0)]), guess], Axis(from_zero=True), "step"
    )
    level = marks(svg, "polyline")[1].get("points")
    assert level == "54.0,106.0 167.5,106.0 167.5,10.0 508.0,10.0"
    assert line_chart("t", [guess], Axis(), "step") == ""


def test_phases_have_borders_and_axes_names(tmp_path):
    rows = [step_row(step, phase=step // 5) for step in range(1, 11)]
    page = page_of(write_run(tmp_path / "run", rows))
    chart = page.partition("<h3>MLM loss, nats</h3>")[2].partition("</svg>")[0] + "</svg>"
    borders = [each for each in marks(chart, "g") if "border" in each.get("class")]
    assert [[text.text for text in each.iter("text")] for each in borders] == [
        ["phase 1"],
        ["phase 2"],
    ]
    assert [next(each.iter("line")).get("x1") for each in borders] == [
        "205.3",
        "457.6",
    ]  # steps 4 and 9
    assert [each.text for each in marks(chart, "text") if each.get("class") == "axis"] == ["step"]
    assert '<text class="axis" x="281.0" y="234" text-anchor="middle">tokens</text>' in page


def test_a_column_that_is_always_zero_is_a_line_of_text(tmp_path):
    rows = [step_row(step, steps_skipped=0, other=step % 2) for step in range(1, 11)]
    page = page_of(write_run(tmp_path / "run", rows))
    assert "always 0: Share of the time spent waiting for data" in page
    assert "always 0: steps skipped" in page
    assert "<h3>steps skipped</h3>" not in page
    assert "<h3>other</h3>" in page


MODEL = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 2,
    "intermediate_size": 64,
}


def header_of(run):
    return page_of(run).partition("</h1>")[2].partition("</p>")[0]


def test_the_header_says_which_model_reads_what_and_how_far_it_has_come(tmp_path):
    facts = {
        "model": MODEL | {"of_a_later_version": 1},
        "datasets": [
            {"name": "wiki", "url": "s3://bucket/data", "root_hash": "0123456789abcdef0123"}
        ],
        "launches": [{"time": "2026-01-01T10:00:00+00:00"}, {"time": "2026-01-02T11:00:00+00:00"}],
    }
    config = {"phases": [{"steps": 6}, {"steps": 4}]}
    header = header_of(write_run(tmp_path / "run", config=config, facts=facts))
    assert "2 layers of 16, 2 heads, vocabulary of 60: 16,446 parameters" in header
    assert "data: wiki at s3://bucket/data, root hash 0123456789abcdef<br>" in header
    assert (
        "started 2026-01-01T10:00:00+00:00, launched 2 times, last 2026-01-02T11:00:00+00:00; "
        in header
    )
    assert "finished after 10 steps" in header
    config = {"phases": [{"steps": 6}, {"steps": 2000}]}
    assert "not finished: 10 of 2,006 steps" in header_of(
        write_run(tmp_path / "b", config=config, facts=facts)
    )


@pytest.mark.parametrize(
    ("config", "changed", "expected"),
    [
        ({"budget_hours": 1.0, "phases": [{"steps": 100}]}, {"eta_seconds": 5.0}, "10 steps"),
        (
            {"budget_hours": 1.0, "phases": [{"steps": 100}]},
            {"eta_seconds": 0.0},
            "finished after 10 steps",
        ),
        (
            {"phases": [{"steps": 99}], "validation": {"stop_at_mlm_accuracy": 0.7}},
            {},
            "finished after 10 steps",
        ),
        (
            {"phases": [{"steps": 99}], "validation": {"stop_at_mlm_accuracy": 0.8}},
            {},
            "not finished: 10 of 99 steps",
        ),
    ],
)
def test_runs_end_by_time_or_at_an_accuracy_too(tmp_path, config, changed, expected):
    rows = [step_row(step, **changed) for step in range(1, 11)]
    rows += [{"step": 10, "split": "validation", "mlm_accuracy": 0.75}]
    assert header_of(write_run(tmp_path / "run", rows, config=config)).endswith(f"; {expected}")
