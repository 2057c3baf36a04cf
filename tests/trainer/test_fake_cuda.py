"""Training and its benchmarks on a stand-in for CUDA: nothing raises, and a step asks no more of a GPU than is stated.

The stand-in computes nothing, so that losses are 0 and checks of numbers fail; what the host does
is real.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.trainer.tiny_dataset import write_tiny_dataset

pytestmark = pytest.mark.engines
ROOT = Path(__file__).resolve().parents[2]
MISSING = [each for each in ("cc", "nm") if shutil.which(each) is None]
if torch.version.cuda is None or find_spec("triton") is None:
    pytest.skip("this torch is not the CUDA build", allow_module_level=True)
if MISSING:
    pytest.skip(
        f"no {' and no '.join(MISSING)}, which build the stand-in for CUDA", allow_module_level=True
    )


def run_on_stand_in(*arguments, caches):
    """Output of a Python program there; nothing that it compiles is left behind."""
    places = {
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
    }
    few = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHON": sys.executable}
    environment = {**os.environ, **places, **few, "PYTHONPATH": str(ROOT)}
    command = [str(ROOT / "scripts/fake-cuda"), sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False
    )


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, caches):
    """What the last step of each run asked for, by what it was run with and its graphs."""
    data = write_tiny_dataset(tmp_path_factory.mktemp("data") / "dataset")
    done = run_on_stand_in(
        "tests/trainer/fake_cuda_runs.py", data, tmp_path_factory.mktemp("runs"), caches=caches
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert all(row["code"] == 0 and row["steps"] == 4 for row in rows)
    names = ("optimizer", "stage", "micro_tokens", "graphs", "override")
    return {tuple(row[name] for name in names): row for row in rows}


# Of ours: the norm, the loss and LAMB's ratios. Of DeepSpeed's ZeRO-1 in bf16: a number that it
# copies to the device, that it reads again as it fills with it, and whether its norm is finite; of
# ZeRO-2: whether a gradient overflowed.
@pytest.mark.parametrize(
    ("stage", "waits", "pageable", "launches"), [(0, 2, 0, 230), (1, 5, 1, 390), (2, 3, 0, 940)]
)
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_a_step_asks_for_what_is_stated(runs, optimizer, stage, waits, pageable, launches):
    step = runs[optimizer, stage, 1_000, 0, ""]
    assert step["waits"] == waits + (optimizer == "lamb")
    assert step["pageable_copies"] == pageable
    assert step["launches"] <= launches
    assert step["host_copies"] == 7 + pageable, "a batch has seven columns"
    assert step["device_copies"] <= (1 if stage == 1 else 46), (
        "a copy for each of the model's tensors"
    )


def test_another_micro_batch_brings_its_columns_and_no_wait(runs):
    one, two = runs["adamw", 1, 1_000, 0, ""], runs["adamw", 1, 64, 0, ""]
    assert {name for name in one if name in two and one[name] != two[name]} == {
        "micro_tokens",
        "launches",
        "host_copies",
    }
    assert two["host_copies"] - one["host_copies"] == 7
    assert two["launches"] - one["launches"] <= 300


def test_a_compiled_model_has_five_graphs_and_starts_fewer_kernels(runs):
    """Triton and ptxas make the kernels for the H200; lengths that differ make no further graphs."""
    compiled, plain = runs["adamw", 1, 64, 5, ""], runs["adamw", 1, 64, 0, ""]
    assert compiled["launches"] < plain["launches"]
    assert compiled["waits"] == plain["waits"]


def test_sums_in_the_pass_of_their_gradients_are_in_the_same_five_graphs(runs):
    fused, compiled = runs["adamw", 1, 64, 5, "fused_sums"], runs["adamw", 1, 64, 5, ""]
    assert fused["waits"] == compiled["waits"]
    assert fused["host_copies"] == compiled["host_copies"]
    assert fused["launches"] < compiled["launches"] + 2 * 2 * 6, "two layers, two micro-batches"


def test_products_in_fp8_are_in_the_same_five_graphs_and_wait_for_nothing_more(runs):
    small, compiled, plain = (
        runs["adamw", 1, 64, *each] for each in ((5, "fp8"), (5, ""), (0, "fp8"))
    )
    assert small["waits"] == plain["waits"] == compiled["waits"]
    assert small["host_copies"] == compiled["host_copies"]
    assert compiled["launches"] < small["launches"] < plain["launches"]


def test_the_loss_of_a_compiled_model_makes_no_logits_in_fp32(runs, caches):
    """What it makes in the shape of the logits [M, V], both symbolic, is their gradient in bf16."""
    codes = [path.read_text() for path in (caches / "inductor").rglob("*.py")]
    losses = [code for code in codes if "nll_loss" in code and "def call(" in code]
    types = [
        re.findall(r"= empty_strided_cuda\(\(s\d+, s\d+\), .*?, torch\.(\w+)\)", code)
        for code in losses
    ]
    assert sorted(types) == [[], ["bfloat16"]], "forward, backward"


# Compiling takes 20 s of a core and is in the runs above.
WITHOUT_COMPILING = """
import sys
from scripts.bench import pretrain_gpu
check_all = pretrain_gpu.check_all
pretrain_gpu.check_all = lambda device, compiled: check_all(device, compiled=False)
sys.exit(pretrain_gpu.main())
"""


def test_the_benchmark_of_steps_raises_nothing(tmp_path, caches):
    data = write_tiny_dataset(tmp_path / "dataset", seq_lens=(128, 512), instances=100)
    output = tmp_path / "found.json"
    flags = [
        "--preset",
        "tiny",
        "--case_seconds",
        "0",
        "--minutes",
        "20",
        "--only",
        "ours 512 batch=256 compile=False",
    ]
    program = ["-c", WITHOUT_COMPILING, "--data", data, "--output", output]
    done = run_on_stand_in(*program, *flags, caches=caches)
    assert output.exists(), done.stderr
    found = json.loads(output.read_text())
    assert found["complete"]
    assert found["hardware"]["name"] == "NVIDIA H200"
    (row,) = found["cases"]
    assert "error" not in row, row
    assert row["synchronisations_per_step"] == 5
    raised = {check["name"]: check["error"] for check in found["checks"] if "error" in check}
    assert all(" padded" in name for name in raised), (
        f"only padded attention asks the device for a layout: {raised}"
    )


def test_the_benchmark_of_stability_raises_nothing(tmp_path, caches):
    data = write_tiny_dataset(tmp_path / "dataset")
    sizes = [
        "--preset",
        "tiny",
        "--seq_len",
        "16",
        "--batch",
        "8",
        "--steps",
        "2",
        "--only",
        "recipe",
    ]
    places = ["--data", data, "--work", tmp_path / "work", "--output", tmp_path / "found.json"]
    done = run_on_stand_in("-m", "scripts.bench.stability_gpu", *sizes, *places, caches=caches)
    assert (tmp_path / "found.json").exists(), done.stderr
    (part,) = json.loads((tmp_path / "found.json").read_text())["parts"].values()
    assert "error" not in part, part
    assert part["losses"] == [0.0, 0.0]
