"""What a run shows of itself, without a run: columns, lines, curves, Weights & Biases."""

import json
import sys
from unittest.mock import MagicMock

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trainer.engine.train_step import StepCounts
from trainer.model.config import Lengths, preset, training_flops
from trainer.process.gpus import peak_tflops_of
from trainer.process.ranks import Ranks
from trainer.runs.metrics import MetricsFile
from trainer.settings import Phase
from trainer.watch.gauge import Gauge
from trainer.watch.recorder import Recorder, TensorBoard, WeightsAndBiases
from trainer.watch.terminal import Progress, StepCount, format_step

CPU_RANKS = Ranks(0, 2, torch.device("cpu"), None)
COUNTS = StepCounts(
    num_micro_batches=1, instances=4, masked=8, tokens=100, squared_tokens=3000, most_tokens=60, wait_seconds=0.5,
    memory_bytes=1, elapsed_seconds=0.0, drawn=(),
)  # fmt: skip
FACTS = {"id": "0123456789abcdef"}
LOSSES = {"loss": 6.3682, "mlm_loss": 5.637, "mlm_accuracy": 0.154}
LOSSES |= {"nsp_loss": 0.7312, "nsp_accuracy": 0.627, "grad_norm": 1.234, "learning_rate": 1e-4}
SPEED = {"tokens_per_second": 21000.4, "data_wait_share": 0.021, "mfu": 0.417}
ROW = {"step": 1200, "split": "train", **LOSSES, **SPEED, "eta_seconds": 8075.0}
ROW["epochs"] = {"wiki": 0.5}


def test_columns_of_a_step():
    config, phases = preset("tiny"), [Phase(128, 4, 10, 1e-3), Phase(512, 2, 5, 1e-3)]
    found = Gauge(config, phases, CPU_RANKS, "fp32", peak=0.001).columns(
        COUNTS, 2.0, phase=0, steps_left=9
    )
    flops = training_flops(config, Lengths(100, 3000, 8))
    assert found["tokens_per_second"] == 50.0
    assert found["max_over_mean_tokens"] == 1.2
    assert found["data_wait_share"] == 0.25
    assert found["model_tflops_per_rank"] == pytest.approx(flops / 4e12)
    assert found["mfu"] == pytest.approx(flops / 4e9)
    assert found["peak_memory_bytes"] > 10e6
    # 9 steps as this one, then 5 steps that have twice its tokens.
    assert found["eta_seconds"] == pytest.approx(2.0 * (9 + 10), rel=0.01)


def test_the_first_step_of_a_launch_counts_in_no_estimate_but_its_own(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("trainer.watch.gauge.time.monotonic", lambda: now[0])
    gauge, estimates = Gauge(preset("tiny"), [Phase(128, 4, 10, 1e-3)], CPU_RANKS, "fp32"), []
    for seconds, left in [(60.0, 9), (2.0, 8), (4.0, 7)]:
        now[0] += seconds
        estimates.append(gauge.columns(COUNTS, seconds, 0, left)["eta_seconds"])
    assert estimates == [540.0, 16.0, 21.0]


@pytest.mark.parametrize(
    ("name", "bf16", "fp32"),
    [
        ("NVIDIA H200", 989, 67), ("NVIDIA H100 80GB HBM3", 989, 67), ("NVIDIA H100 PCIe", 756, 51),
        ("NVIDIA GH200 480GB", 989, 67), ("NVIDIA B200", 2250, 75),
        ("NVIDIA A100-SXM4-40GB", 312, 19.5), ("Tesla V100-SXM2-32GB", None, 15.7),
        ("NVIDIA L4", 121, 30.3), ("NVIDIA L40S", 362, 91.6),
        ("NVIDIA GeForce RTX 4090", None, None),
    ],
)  # fmt: skip
def test_peaks_of_gpus_by_the_name_torch_gives(name, bf16, fp32):
    assert (peak_tflops_of(name, "bf16"), peak_tflops_of(name, "fp32")) == (bf16, fp32)


def test_a_line_has_units():
    assert format_step(ROW, 90_000) == (
        "step 1,200/90,000: loss 6.368, MLM 5.637 (15%), NSP 0.731 (63%); norm 1.2, lr 0.0001; "
        "21,000 tok/s, data wait 2%, MFU 42%; ETA 2 h 14 min"
    )
    assert "MFU" not in format_step(ROW | {"mfu": None}, 90_000)
    without_nsp = {key: value for key, value in ROW.items() if not key.startswith("nsp")}
    assert format_step(without_nsp, None).startswith("step 1,200: loss 6.368, MLM 5.637 (15%); no")


def test_a_log_takes_a_line_now_and_then_and_the_last_step(capsys):
    now = [0.0]
    progress = Progress(4, 0, shown=True, clock=lambda: now[0])
    for step, time in [(1, 0.0), (2, 9.0), (3, 11.0), (4, 12.0)]:
        now[0] = time
        progress.advance(ROW | {"step": step})
    progress.close()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" step ")[1].partition(":")[0] for line in lines] == ["1/4", "3/4", "4/4"]


def test_a_log_counts_the_steps_of_several_runs_in_lines_of_their_own(capsys):
    now = [0.0]
    steps = StepCount(4, shown=True, clock=lambda: now[0])
    for run, time in [("a", 2.0), ("a", 11.0), ("b", 12.0), ("b", 16.0)]:
        now[0] = time
        steps.begin_run(run)
        steps.advance()
    steps.close()
    lines = ["a: step 2/4 of all runs, ETA 11 s", "b: step 4/4 of all runs, ETA 0 s"]
    assert capsys.readouterr().err == "".join(f"{line}\n" for line in lines)
    hidden = StepCount(1, shown=False)
    hidden.advance()
    assert capsys.readouterr().err == ""


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in for the package, which notes how it was called."""
    fake = MagicMock(Error=type("Error", (Exception,), {}))
    fake.init.return_value.step = 0
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_a_run_that_goes_back_doubles_no_step(wandb, tmp_path):
    metrics, run = MetricsFile(tmp_path / "metrics.jsonl"), wandb.init.return_value
    shown = [TensorBoard(tmp_path / "tensorboard", 0)]
    recorder = Recorder(metrics, [*shown, WeightsAndBiases("berts", tmp_path, FACTS, {})])
    for step in (1, 2, 3):
        recorder.add({"step": step, "split": "train", "loss": float(step)})
        run.step = step + 1
    recorder.restart_after(1)
    for step in (2, 3, 4):
        recorder.add({"step": step, "split": "train", "loss": 10.0 * step})
    recorder.close()
    expected = [(1, 1.0), (2, 20.0), (3, 30.0), (4, 40.0)]
    rows = [json.loads(line) for line in metrics.path.read_text().splitlines()]
    assert [(row["step"], row["loss"]) for row in rows] == expected
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == expected
    assert [call.kwargs["step"] for call in run.log.call_args_list] == [1, 2, 3, 4]


def test_weights_and_biases_gets_the_curves(wandb, tmp_path):
    shown = WeightsAndBiases("berts", tmp_path / "run", FACTS, {"seed": 3})
    recorder = Recorder(MetricsFile(tmp_path / "metrics.jsonl"), [shown])
    recorder.add(ROW)
    recorder.close()
    assert wandb.init.call_args.kwargs == {
        "project": "berts", "id": "0123456789abcdef", "name": "run", "config": {"seed": 3},
        "dir": str(tmp_path / "run"), "resume": "allow",
    }  # fmt: skip
    run = wandb.init.return_value
    [((row,), more)] = run.log.call_args_list
    assert more == {"step": 1200}
    found = [row[name] for name in ("train/mlm_loss", "speed/mfu", "train/epochs/wiki")]
    assert (found, "train/split" in row) == ([5.637, 0.417, 0.5], False)
    run.finish.assert_called_once_with()


def test_weights_and_biases_that_is_missing_or_refuses(wandb, tmp_path, monkeypatch):
    wandb.init.side_effect = wandb.Error("no API key")
    with pytest.raises(ValueError, match=r"--wandb berts: no API key; `wandb login`"):
        WeightsAndBiases("berts", tmp_path, FACTS, {})
    monkeypatch.setitem(sys.modules, "wandb", None)
    said = "--wandb needs the package wandb, which cannot be imported"
    with pytest.raises(ValueError, match=said):
        WeightsAndBiases("berts", tmp_path, FACTS, {})
