"""Training on a stand-in for CUDA: nothing raises, and a step asks no more of a GPU than is stated.

fake_cuda.c answers as one H200 and is preloaded, so the CUDA build of torch runs without a GPU. It
computes nothing, so that losses are 0; what the host does is real and counted. Run as a program,
this file makes the runs and prints a line of JSON for each.
"""

import ctypes
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import traceback
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from tests.trainer.tiny_dataset import write_tiny_dataset
from trainer.model import attention
from trainer.model.config import ModelSettings
from trainer.model.packed_inputs import PackedInputs
from trainer.optim.settings import OptimizerSettings
from trainer.pretrain import loop
from trainer.process.ranks import describe_device
from trainer.runs.run_folder import RunFolder
from trainer.settings import Phase, PretrainSettings

pytestmark = pytest.mark.engines
ROOT = Path(__file__).resolve().parents[2]
# Not cuDNN, cuSPARSE and their like: the real ones load without a GPU, and nobody calls them.
STOOD_IN_FOR = re.compile(r"__cuda|cuda[A-Z]|cu[A-Z]|cublas|nccl")
COUNTS = ("launches", "device_copies", "host_copies", "pageable_copies", "read_backs", "waits")
STEPS = 4
# Name, precision (None lets the device decide), stage of ZeRO, most tokens of a micro-batch (8
# instances of 8 to 16 tokens).
RUNS = [
    ("adamw", "bf16", 1, 1_000), ("adamw", None, 1, 64), ("adamw", "bf16", 2, 1_000),
    ("adamw", "fp32", 0, 1_000), ("lamb", "bf16", 1, 1_000), ("muon", "bf16", 2, 1_000),
]  # fmt: skip


def build(folder):
    """libfake_cuda.so: fake_cuda.c, and for other names torch wants a function that succeeds."""
    headers = [path.parent for path in package("nvidia").glob("*/include/cuda_runtime_api.h")]
    headers.append(package("triton") / "backends/nvidia/include")  # has crt/
    flags = ["-fPIC", "-O1", "-w", *(f"-I{each}" for each in headers)]
    answers = folder / "answers.o"
    source = str(ROOT / "tests/trainer/fake_cuda.c")
    subprocess.run(["cc", "-c", *flags, source, "-o", str(answers)], check=True)
    libraries = package("torch").glob("lib/lib*.so")
    wanted = set().union(*(symbols(path, "--undefined-only") for path in libraries))
    missing = set(filter(STOOD_IN_FOR.match, wanted)) - symbols(answers, "--defined-only")
    stubs = "".join(f"long {name}(void) {{ return 0; }}\n" for name in sorted(missing))
    (folder / "stubs.c").write_text(stubs)
    library = folder / "libfake_cuda.so"
    parts = [str(folder / "stubs.c"), str(answers), "-ldl", "-lpthread"]
    subprocess.run(["cc", "-shared", *flags, *parts, "-o", str(library)], check=True)
    (folder / "libcuda.so.1").symlink_to(library.name)
    return library


def package(name):
    return Path(importlib.util.find_spec(name).submodule_search_locations[0])


def symbols(path, which):
    """Names in a library's table of symbols, versions cut off."""
    dynamic = ["--dynamic"] if path.suffix == ".so" else []
    lines = subprocess.check_output(["nm", *dynamic, which, str(path)], text=True).splitlines()
    return {line.split()[-1].partition("@")[0] for line in lines if line.split()}


def main():
    """Makes all runs, each in a fork: a process can start DeepSpeed only once."""
    data, folder = sys.argv[1:]
    for number, run in enumerate(RUNS):
        pid = os.fork()
        if pid == 0:
            try:
                train(data, Path(folder) / str(number), *run)
            except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if status:
            raise SystemExit(f"run {run} failed")


def train(data, output, optimizer, precision, stage, micro_tokens):
    """`pretrain`, with the counters read after each step."""
    if precision == "fp32":  # padded attention asks the device for the layout, and here gets none
        PackedInputs.padded = None
        attention._padded_attention = lambda qkv, *_: sum(qkv)
    seen, log_step = [counts()], loop._log_step

    def log_and_count(*args):
        log_step(*args)
        seen.append(counts())

    loop._log_step = log_and_count
    chosen = {"precision": precision, "zero_stage": stage, "micro_tokens": micro_tokens}
    chosen |= {"compile": False}
    chosen |= {"model": ModelSettings("tiny", {"num_layers": 2})}
    chosen |= {"optimizer": OptimizerSettings(optimizer)}
    phases = [Phase(16, 8, STEPS, 1e-3)]
    assert loop.pretrain(PretrainSettings([data], str(output), phases, **chosen)) == 0
    assert len(seen) == STEPS + 1
    step = {name: seen[-1][name] - seen[-2][name] for name in COUNTS}
    row = {"run": (optimizer, stage, micro_tokens), **step}
    row["precision"] = RunFolder(output).read_config()["precision"]
    row["device"] = asdict(describe_device(torch.device("cuda", 0)))
    os.write(1, (json.dumps(row) + "\n").encode())


def counts():
    library = ctypes.CDLL(None)
    return {name: ctypes.c_long.in_dll(library, f"fake_cuda_{name}").value for name in COUNTS}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What the last step of each run asked for."""
    if torch.version.cuda is None or importlib.util.find_spec("triton") is None:
        pytest.skip("this torch is not the CUDA build")
    if not (shutil.which("cc") and shutil.which("nm")):
        pytest.skip("no cc or no nm, which build the stand-in for CUDA")
    data = write_tiny_dataset(tmp_path_factory.mktemp("data") / "dataset")
    library = build(tmp_path_factory.mktemp("library"))
    paths = [str(library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environment = os.environ | {
        "LD_PRELOAD": str(library),
        "LD_LIBRARY_PATH": ":".join(paths),
        "DS_ACCELERATOR": "cuda",  # whatever a training on the CPU has left in the environment
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, __file__, str(data), str(tmp_path_factory.mktemp("runs"))]
    printed = subprocess.check_output(command, text=True, env=environment, cwd=ROOT)
    rows = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return {tuple(row["run"]): row for row in rows}


def test_a_gpu_decides_for_bf16(runs):
    for (_, stage, _), row in runs.items():
        assert row["precision"] == ("bf16" if stage else "fp32")
        assert row["device"]["has_bf16"]
        assert row["device"]["can_compile"]


# The norm, the loss and LAMB's ratios. DeepSpeed waits for nothing.
@pytest.mark.parametrize(
    ("optimizer", "stage", "waits", "launches"),
    [("adamw", 0, 2, 240), ("adamw", 1, 2, 250), ("adamw", 2, 2, 250), ("lamb", 1, 3, 270)],
)
def test_a_step_asks_for_what_is_stated(runs, optimizer, stage, waits, launches):
    step = runs[optimizer, stage, 1_000]
    assert step["waits"] == waits
    assert step["pageable_copies"] == 0
    assert step["launches"] <= launches
    assert step["host_copies"] == 7, "a batch has seven columns"
    assert step["device_copies"] == 0


def test_muon_works_on_the_device_and_waits_no_more(runs):
    ours, adamw = runs["muon", 2, 1_000], runs["adamw", 2, 1_000]
    changed = {name for name in COUNTS if ours[name] != adamw[name]}
    assert changed == {"launches", "device_copies"}


def test_another_micro_batch_brings_its_columns_and_no_wait(runs):
    one, two = runs["adamw", 1, 1_000], runs["adamw", 1, 64]
    changed = {name for name in COUNTS if one[name] != two[name]}
    assert changed == {"launches", "host_copies"}
    assert two["host_copies"] - one["host_copies"] == 7
    assert two["launches"] - one["launches"] <= 300


if __name__ == "__main__":
    main()
