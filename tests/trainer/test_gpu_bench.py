"""The GPU benchmarks without a GPU: time that is kept, files that survive, formulas, and whole programs on a CPU."""

import dataclasses
import json
import signal
import sys
from pathlib import Path

import pytest
import torch

from scripts.bench import pretrain_run_gpu, stability_gpu
from scripts.bench.gpu import checks, measure
from scripts.bench.gpu.cases import Budget, Case, cpu_cases, gpu_cases
from scripts.bench.gpu.checks import check_dropout, distance
from scripts.bench.gpu.result import ResultFile, compare, format_row
from scripts.bench.gpu.runs import rows_of, thin
from scripts.bench.prepare_gpu_data import DATASETS, WHEELS, pinned
from scripts.checkout import commit
from tests.loaded_python import run_python
from tests.trainer.tiny_dataset import write_tiny_dataset
from trainer.process.ranks import Ranks

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
SHARES = {"forward", "backward", "optimizer", "data_wait", "rest"}


class Clock:
    """Seconds that pass only when a case takes them."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def spend(seconds, costs, guess=10.0):
    """Names of the cases that ran, and rows of those that did not, when cases cost so many seconds each."""
    clock = Clock()
    cases = [
        Case(system, 128, 8, micro_tokens=size) for size, (system, _) in enumerate(costs, start=1)
    ]
    seconds_of = {case.name: cost for case, (_, cost) in zip(cases, costs, strict=True)}
    ran = []

    def run(case):
        ran.append(case.micro_tokens)
        clock.now += seconds_of[case.name]
        return {"found": 1}

    rows = list(Budget(seconds, guess, clock).spend(cases, run))
    assert [row["name"] for row in rows] == [case.name for case in cases]
    return ran, [row["not_run"] for row in rows if "not_run" in row], clock.now - 100


def test_cases_run_in_order_until_the_next_one_would_not_fit():
    ran, reasons, spent = spend(100, [("ours", 20)] * 6)
    assert (ran, spent) == ([1, 2, 3, 4], 80)
    assert reasons == ["20 s were left, 25 s were expected"] * 2


def test_a_cheaper_case_still_runs_after_one_that_did_not_fit():
    ran, reasons, _ = spend(
        100, [("transformers", 50), ("ours", 10), ("transformers", 50), ("ours", 10)]
    )
    assert ran == [1, 2, 4]
    assert reasons == ["40 s were left, 62 s were expected"]


def test_nothing_begins_after_the_end():
    ran, reasons, spent = spend(30, [("ours", 40), ("plain", 1)])
    assert (ran, spent) == ([1], 40)
    assert reasons == ["0 s were left, 12 s were expected"]


def test_the_sweep_answers_every_goal_and_repeats_nothing():
    cases = gpu_cases()
    assert len({case.name for case in cases}) == len(cases)
    assert {case.seq_len * case.global_batch for case in cases[:3]} == {131_072}
    assert [case.name for case in cases[:2]] == ["ours 128 batch=1024", "ours 512 batch=256"]
    assert {case.system for case in cases[2:4]} == {"transformers"}
    ours = [case for case in cases if case.system == "ours"]
    assert {case.seq_len for case in ours} == {128, 512}
    for field in (
        "micro_tokens",
        "optimizer",
        "zero_stage",
        "compile",
        "recompute",
        "fused_qkv",
        "padded_vocab",
        "fused_sums",
        "fp8",
    ):
        assert len({getattr(case, field) for case in ours}) > 1, f"{field} is not swept"
    assert {case.attention for case in cases if case.system == "transformers"} == {"sdpa", "best"}
    assert all(not case.compile for case in cpu_cases([128, 512]))


def row_of(case, tokens_per_second, mfu=0.55, wait=0.01, graphs=5):
    shares = dict.fromkeys(SHARES, 0.2) | {"data_wait": wait}
    return {
        "name": case.name,
        "case": dataclasses.asdict(case),
        "real_tokens_per_second": {"median": tokens_per_second},
        "mfu": {"median": mfu},
        "share_of_step": shares,
        "peak_memory_gib": 20.0,
        "compiled_graphs": graphs,
    }


def test_goals_compare_cases_that_differ_in_one_thing():
    long = Case("ours", 512, 256)
    peer = dataclasses.replace(long, system="transformers", attention="sdpa")
    lamb = dataclasses.replace(long, optimizer="lamb")
    plain = dataclasses.replace(long, system="plain")
    other = dataclasses.replace(peer, seq_len=128)
    fp8 = dataclasses.replace(long, fp8=True)
    rows = [
        row_of(long, 200.0),
        row_of(peer, 90.0),
        row_of(lamb, 180.0),
        row_of(plain, 202.0),
        row_of(other, 1.0),
    ]
    rows.append(row_of(fp8, 248.0))
    goals = {(each["goal"], each["cases"]): (each["value"], each["met"]) for each in compare(rows)}
    assert goals["ours over transformers", f"{long.name} / {peer.name}"] == (2.2222, True)
    assert goals["ours over the plain loop", f"{long.name} / {plain.name}"] == (0.9901, True)
    assert goals["LAMB over AdamW", f"{lamb.name} / {long.name}"] == (0.9, False)
    assert goals["MFU", long.name] == (0.55, True)
    assert goals["FP8 over bf16", f"{fp8.name} / {long.name}"] == (1.24, False)
    assert len(goals) == 4 + 3 * 3, (
        "three of the rows are ours and have three goals of their own each"
    )


def test_rows_that_were_not_measured_are_no_comparison():
    case = Case("ours", 512, 256)
    rows = [{"name": case.name, "case": dataclasses.asdict(case), "not_run": "0 s were left"}]
    assert compare(rows) == []
    assert "not run: 0 s were left" in format_row(rows[0])


def test_a_killed_run_keeps_what_it_had_measured(tmp_path):
    result = ResultFile("pretrain_gpu", CPU, tmp_path)
    rows = []
    for number in range(2):
        rows.append({"name": str(number), "value": float("nan")})
        result.put(cases=rows)
    (path,) = tmp_path.iterdir()
    kept = json.loads(path.read_text())
    assert [row["name"] for row in kept["cases"]] == ["0", "1"]
    assert kept["cases"][0]["value"] == "nan"
    assert not kept["complete"]
    assert not kept["times_mean_something"]
    assert path.name == f"pretrain_gpu_this-cpu_{kept['date'][:10]}.json"


def test_the_dropout_check_finds_a_wrong_share(monkeypatch):
    found = {row["name"]: row for row in check_dropout(CPU, "padded")}
    assert all(row["passed"] for row in found.values()), found
    plain = checks.attention
    monkeypatch.setattr(
        checks,
        "attention",
        lambda q, k, v, s, p, b: plain(q, k, v, s, 0.12, b) * (1 - 0.12) / (1 - p),
    )
    assert not all(row["passed"] for row in check_dropout(CPU, "padded"))


def test_a_check_that_fails_to_run_does_not_end_the_others(monkeypatch):
    def broken(*_: object, **__: object):
        raise AssertionError("a compiler\nsays much")
        yield

    monkeypatch.setattr(checks, "check_dropout", broken)
    monkeypatch.setattr(checks, "check_model", broken)
    found = list(checks.check_all(CPU, compiled=True))
    failed = [row for row in found if not row["passed"]]
    assert [row["error"] for row in failed] == ["AssertionError: a compiler"] * 8
    assert failed[-2]["name"] == "broken auto is_compiled fused_qkv padded_vocab"
    assert len(found) == 8 + 8 + 3


def test_a_check_that_takes_too_long_is_a_check_that_fails(monkeypatch):
    def hang(*_: object, **__: object):
        signal.raise_signal(signal.SIGALRM)
        yield

    for name in ("check_attention", "check_dropout", "check_model", "check_fp8"):
        monkeypatch.setattr(checks, name, hang)
    before = signal.getsignal(signal.SIGALRM)
    errors = {row["error"] for row in checks.check_all(CPU, compiled=False)}
    assert errors == {"TimeoutError: not done after 60 s"}
    assert signal.getsignal(signal.SIGALRM) == before


def test_a_profiler_that_fails_says_so_and_leaves_the_times(monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("CUPTI_ERROR_UNKNOWN\nmore")

    monkeypatch.setattr(measure, "operations_of", fail)
    bench = measure.Bench(None, None, Ranks(0, 1, CPU, counts_group=None), 1.0, 1.0, frozenset())
    found = bench._profile(None, None)
    assert found == {
        "synchronisations_per_step": None,
        "profile_error": "RuntimeError: CUPTI_ERROR_UNKNOWN",
    }


@pytest.mark.engines
@pytest.mark.parametrize(
    ("error", "row"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory.\nTried"),
            {"does_not_fit": "CUDA out of memory."},
        ),
        (AssertionError("DeepSpeed's"), {"error": "AssertionError: DeepSpeed's"}),
    ],
)
def test_a_case_that_fails_leaves_a_row(monkeypatch, error, row):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(measure, "build_system", fail)
    ranks = Ranks(0, 1, CPU, counts_group=None)
    bench = measure.Bench(None, None, ranks, 1.0, 1.0, frozenset())
    assert bench.run(Case("ours", 512, 256)) == row
    assert next(iter(row)).replace("_", " ") in format_row({"name": "ours", **row})


def test_without_git_the_commit_is_what_the_environment_says(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("BEAMBERT_COMMIT", "1234567")
    assert commit() == "1234567"


def test_distance_is_infinite_where_a_number_is_none():
    assert distance(torch.tensor([1.0, float("nan")]), torch.ones(2)) == float("inf")
    assert distance(torch.tensor([3.0, 4.4]), torch.tensor([3.0, 4.0])) == pytest.approx(0.08)


def test_curves_keep_their_last_row():
    rows = [{"step": number, "loss": number / 3} for number in range(1, 1_000)]
    kept = thin(rows, {"step": 0, "loss": 2, "missing": 1})
    assert len(kept) <= 121
    assert kept[0] == {"step": 1, "loss": 0.33}
    assert kept[-1] == {"step": 999, "loss": 333.0}


def test_what_is_packed_has_a_version():
    assert pinned("deepspeed") == "deepspeed==0.19.8"
    assert all("==" in pinned(name) for name in WHEELS)
    assert set(DATASETS) == {"bench", "run"}
    with pytest.raises(ValueError, match=r"constraints\.txt names no version of nonesuch"):
        pinned("nonesuch")


@pytest.fixture(scope="module")
def tiny_data(tmp_path_factory):
    return write_tiny_dataset(
        tmp_path_factory.mktemp("data") / "dataset", seq_lens=(16, 32), instances=120
    )


def run_program(module, *arguments):
    return run_python(["-m", f"scripts.bench.{module}", *arguments])


@pytest.mark.processes
def test_the_whole_benchmark_on_a_cpu(tiny_data, tmp_path):
    output = tmp_path / "found.json"
    flags = [
        "--device",
        "cpu",
        "--preset",
        "tiny",
        "--seq_lens",
        "16",
        "32",
        "--case_seconds",
        "0",
        "--minutes",
        "20",
    ]
    done = run_program("pretrain_gpu", "--data", str(tiny_data), *flags, "--output", str(output))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(output.read_text())
    assert found["complete"]
    assert found["failed_checks"] == []
    assert len(found["checks"]) == 23
    assert found["versions"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert [row["name"] for row in found["cases"]] == [case.name for case in cpu_cases([16, 32])]
    for row in found["cases"]:
        assert "error" not in row, row
        assert set(row["share_of_step"]) == SHARES
        assert sum(row["share_of_step"].values()) == pytest.approx(1.0, abs=0.02)
        assert row["step_seconds"]["n"] == 5
        assert row["compiled_graphs"] == 0
        assert row["micro_batches"] >= 1
    systems = {
        row["case"]["system"]: row["first_loss"]
        for row in found["cases"]
        if row["case"]["seq_len"] == 16
    }
    assert systems["plain"] == pytest.approx(systems["ours"], abs=0.3), (
        "the same weights, another dropout"
    )
    assert systems["transformers"] == pytest.approx(systems["ours"], abs=0.3)
    assert found["cases"][0]["operations"]["launches"] > 100
    assert "its times mean nothing" in done.stdout


@pytest.mark.engines
def test_the_stability_programs_on_a_cpu(tiny_data, tmp_path):
    sizes = ["--device", "cpu", "--preset", "tiny", "--seq_len", "16", "--batch", "16"]
    places = ["--data", str(tiny_data), "--work", str(tmp_path / "work"), "--output"]
    done = run_program(
        "stability_gpu",
        *sizes,
        "--small_preset",
        "tiny",
        "--steps",
        "40",
        *places,
        str(tmp_path / "s"),
    )
    found = json.loads(next((tmp_path / "s").iterdir()).read_text())
    assert done.returncode == 0, found
    assert set(found["parts"]) == {"precision", "resume", "recipe"}
    assert found["parts"]["resume"]["weights_equal_to_the_bit"]
    assert 23 <= found["parts"]["resume"]["killed_after_step"] < 120
    assert found["parts"]["precision"]["largest_relative_difference"] > 0
    done = run_program(
        "pretrain_run_gpu", *sizes, "--minutes", "0.05", *places, str(tmp_path / "r")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(next((tmp_path / "r").iterdir()).read_text())
    assert found["complete"]
    assert found["validation"][-1]["nsp_accuracy"] >= 0
    assert set(found["samples"]) == set(pretrain_run_gpu.SAMPLES)
    assert all(found["samples"].values())
    assert found["cost_minutes"]["all"] >= 0.05


@pytest.mark.processes
def test_a_run_that_fails_is_a_part_that_fails(tmp_path, monkeypatch):
    arguments = [
        "x",
        "--data",
        str(tmp_path / "nothing"),
        "--work",
        str(tmp_path / "w"),
        "--device",
        "cpu",
    ]
    monkeypatch.setattr(
        sys, "argv", [*arguments, "--only", "precision", "--output", str(tmp_path / "f.json")]
    )
    assert stability_gpu.main() == 1
    part = json.loads((tmp_path / "f.json").read_text())["parts"]["precision"]
    assert not part["passed"]
    assert "nothing" in part["error"]
    assert rows_of(tmp_path / "w" / "precision-bf16") == []
