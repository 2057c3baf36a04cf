"""Triton's kernels of attention: correct in its interpreter, compiled for an H200, started on the stand-in for CUDA."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="comes with the CUDA build of torch")
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from trainer.model import short_attention
from trainer.model.short_attention import ShortAttention, launch_settings

pytestmark = pytest.mark.engines
ROOT = Path(__file__).resolve().parents[2]
SHARED_BYTES = 227 * 1024  # of one block on sm_90
POINTERS = {"log_sums": "*fp32", "borders": "*i32", "seed": "*i64"}
NUMBERS = {"scale": "fp32", "counters_of_a_row": "i32", "threshold": "i32", "kept_scale": "fp32"}


def test_values_gradients_and_masks_equal_attention_written_out():
    """Both directions draw one mask: gradients are those of the mask that was read off the context."""
    command = [sys.executable, "tests/trainer/short_attention_runs.py"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(cases) == 6
    for case in cases:
        assert case["context"] < 2e-6, case
        assert max(case["gradients"]) < 1e-5, case
        assert case["strange_values"] == 0, case
        sigma = (case["dropout_p"] * (1 - case["dropout_p"]) / case["num_draws"]) ** 0.5
        assert abs(case["kept"] - 1 + case["dropout_p"]) <= 5 * sigma, case


@pytest.mark.parametrize("name", ["_forward_kernel", "_backward_kernel"])
@pytest.mark.parametrize(("max_seqlen", "dropout_p"), [(128, 0.1), (128, 0.0), (512, 0.1)])
def test_kernels_compile_for_an_h200(name, max_seqlen, dropout_p, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel, launch = getattr(short_attention, name), launch_settings(16, 64, max_seqlen, dropout_p, is_causal=False)
    fixed = {key: value for key, value in launch.items() if key.isupper()}
    types = {**POINTERS, **NUMBERS, **{f"{each}_stride": "i32" for each in "qkv"}, **dict.fromkeys(fixed, "constexpr")}
    signature = {each: types.get(each, "*bf16") for each in kernel.arg_names}
    made = compile(ASTSource(kernel, signature, fixed), GPUTarget("cuda", 90, 32), {"num_warps": launch["num_warps"]})
    assert made.asm["cubin"]
    assert made.metadata.shared <= SHARED_BYTES
    assert "atom" not in made.asm["ptx"]
    assert "wgmma" in made.asm["ptx"], "Hopper's matrix instructions"


def test_a_head_of_another_size_is_refused():
    q = torch.zeros(3, 1, 24)
    with pytest.raises(
        ValueError, match=r"wants a head size of \(16, 32, 64, 128\), found 24; choose another num_heads"
    ):
        ShortAttention.apply(q, q, q, torch.tensor([0, 3], dtype=torch.int32), 3, 0.1, False)
