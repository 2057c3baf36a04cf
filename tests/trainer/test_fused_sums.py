"""Triton's kernels that sum gradients as they make them: correct in its interpreter, compiled for an H200."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="comes with the CUDA build of torch")
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from trainer.model import fused_sums

pytestmark = pytest.mark.engines
ROOT = Path(__file__).resolve().parents[2]
TYPES = {
    **dict.fromkeys(("sums", "mean", "scale"), "*fp32"),
    "kept": "*i1",
    "num_rows": "i32",
    "num_columns": "i32",
    "kept_scale": "fp32",
}


def test_values_and_gradients_equal_those_written_out_and_a_layer_the_plain_one():
    """Without a bound of its own bf16 rounds to 8 bits; fp32 is compared with fp64."""
    command = [sys.executable, "tests/trainer/fused_sums_runs.py"]
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(cases) == 20
    for case in cases:
        assert max(case["differences"]) < (1e-6 if case["dtype"] == "torch.float32" else 1e-2), case


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("_gelu_kernel", fused_sums.GELU_LAUNCH),
        ("_norm_kernel", fused_sums.norm_launch(1_024)),
        ("_norm_kernel", fused_sums.norm_launch(768)),
    ],
)
def test_kernels_compile_for_an_h200_and_stay_in_registers(name, settings, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = getattr(fused_sums, name)
    fixed = {key: value for key, value in settings.items() if key.isupper()}
    types = {**TYPES, **dict.fromkeys(fixed, "constexpr")}
    signature = {each: types.get(each, "*bf16") for each in kernel.arg_names}
    wide = [
        place
        for place, each in enumerate(kernel.arg_names)
        if signature[each][0] == "*" or each == "num_columns"
    ]
    source = ASTSource(
        kernel, signature, fixed, {(place,): [["tt.divisibility", 16]] for place in wide}
    )
    made = compile(source, GPUTarget("cuda", 90, 32), {"num_warps": settings["num_warps"]})
    assert "atom" not in made.asm["ptx"]
    (tmp_path / "kernel.ptx").write_text(made.asm["ptx"])
    command = [
        triton.knobs.nvidia.ptxas.path,
        "-v",
        "--gpu-name",
        "sm_90a",
        "kernel.ptx",
        "-o",
        "kernel.cubin",
    ]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    assert "0 bytes spill stores, 0 bytes spill loads" in said, said
    assert int(re.search(r"Used (\d+) registers", said)[1]) <= 128, (
        said
    )  # two blocks of 8 warps on a processor
