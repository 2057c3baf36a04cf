"""Triton's kernels of attention: correct in its interpreter, compiled for an H200, started on the stand-in for CUDA."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="comes with the CUDA build of torch")
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from trainer.model import short_attention
from trainer.model.short_attention import ShortAttention

pytestmark = pytest.mark.engines
ROOT = Path(__file__).resolve().parents[2]
SHARED_BYTES = 227 * 1024 // 2  # of one block on sm_90, where two share a processor
POINTERS = {
    "log_sums": "*fp32",
    "borders": "*i32",
    "seed": "*i32",
    "k_sums": "*fp32",
    "v_sums": "*fp32",
}
NUMBERS = {"scale": "fp32", "counters_of_a_row": "i32", "threshold": "i32", "kept_scale": "fp32"}


def test_values_gradients_and_masks_equal_attention_written_out():
    """Both directions draw one mask: gradients are those of the mask that was read off the context."""
    command = [sys.executable, "tests/trainer/short_attention_runs.py"]
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
    *cases, layers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(cases) == 7
    assert layers["stackings"] == 0, "one product has one gradient"
    assert max(layers["layers"]) < 1e-5
    for case in cases:
        assert case["context"] < 2e-6, case
        assert max(case["gradients"]) < 1e-5, case
        assert case["strange_values"] == 0, case
        assert case["whole_is_same"], case
        sigma = (case["dropout_p"] * (1 - case["dropout_p"]) / case["num_draws"]) ** 0.5
        assert abs(case["kept"] - 1 + case["dropout_p"]) <= 5 * sigma, case


@pytest.mark.parametrize("way", ["forward", "backward"])
@pytest.mark.parametrize(
    ("max_seqlen", "dropout_p", "most_registers"),
    [(128, 0.1, 128), (128, 0.0, 128), (512, 0.1, 255)],
)
def test_kernels_compile_for_an_h200_and_stay_in_registers(
    way, max_seqlen, dropout_p, most_registers, tmp_path, monkeypatch
):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = getattr(short_attention, f"_{way}_kernel")
    launch = getattr(short_attention, f"{way}_launch")(
        16, 64, max_seqlen, dropout_p, is_causal=False
    )
    fixed = {key: value for key, value in launch.items() if key.isupper()}
    types = {
        **POINTERS,
        **NUMBERS,
        **{f"{each}_stride": "i32" for each in "qkvd"},
        **dict.fromkeys(fixed, "constexpr"),
    }
    signature = {each: types.get(each, "*bf16") for each in kernel.arg_names}
    wide = [
        place
        for place, each in enumerate(kernel.arg_names)
        if signature[each][0] == "*" or "stride" in each
    ]
    source = ASTSource(
        kernel, signature, fixed, {(place,): [["tt.divisibility", 16]] for place in wide}
    )
    options = {key: launch[key] for key in ("num_warps", "num_stages", "maxnreg") if key in launch}
    made = compile(source, GPUTarget("cuda", 90, 32), options)
    assert made.metadata.shared <= SHARED_BYTES
    assert "atom" not in made.asm["ptx"]
    assert "wgmma" in made.asm["ptx"], "Hopper's matrix instructions"
    assert "mma.sync" not in made.asm["ptx"], "those of older devices"
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
    assert int(re.search(r"Used (\d+) registers", said)[1]) <= most_registers, said


def test_a_head_of_another_size_is_refused():
    q = torch.zeros(3, 1, 24)
    with pytest.raises(
        ValueError,
        match=r"wants a head size of \(16, 32, 64, 128\), found 24; choose another num_heads",
    ):
        ShortAttention.apply(torch.tensor([0, 3], dtype=torch.int32), 3, 0.1, False, q, q, q)
