"""Whether training on a GPU stays on course: a large model's first steps, bf16 beside fp32, a killed run continued.

    python -m scripts.bench.stability_gpu --data DATASET --work FOLDER

`recipe`: BERT-LARGE, post-LN, bf16, Google's batch and peak rate, with the warm-up in a tenth of
300 steps, where the recipe takes 10,000: harsher than what it stands for. Every loss finite, no
gradient refused, a lower loss at the end. `precision`: 20 steps of BERT-SMALL without dropout in
bf16 on the device and in fp32 on the CPU. `resume`: the same run undisturbed, and killed and
continued; their losses side by side. Attention on a GPU adds up in no fixed order, so that equal
bits are noted and not asked for. `fp8`, which is made only where --only names it: --steps steps of
the small model with products in FP8, and the same in bf16, on the device; the mean loss of each
tenth of the steps, and of validation, side by side.

DATASET has length 128. Writes stability_gpu_HARDWARE_DATE.json after every part; the exit code is 1
where one failed. `--device cpu --preset tiny --small_preset tiny --steps 12` runs the same code on
a CPU.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from scripts.bench.gpu.result import ResultFile
from scripts.bench.gpu.runs import column, finish, kill_after, rows_of, start, write_config

LOSS_BOUND = 0.01  # of a loss in bf16, relative to fp32, over 20 steps
RESUME_BOUND = 0.01
FP8_BOUND = 0.005  # of the mean loss of a tenth of the steps, relative to bf16
PRECISION_STEPS = 20


def main() -> int:
    """Runs the parts."""
    options = parse_options()
    device = torch.device(options.device)
    result = ResultFile("stability_gpu", device, options.output)
    result.put(
        data=options.data, preset=options.preset, small_preset=options.small_preset, parts={}
    )
    parts: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
        "precision": check_precision,
        "resume": check_resume,
        "recipe": check_recipe,
        "fp8": check_fp8,
    }
    found: dict[str, dict[str, Any]] = {}
    for name in options.only:
        try:
            found[name] = parts[name](options)
        except Exception as error:  # noqa: BLE001 - the other parts go on
            found[name] = {"passed": False, "error": f"{type(error).__name__}: {error}"}
        print(
            f"{name}: {'passed' if found[name]['passed'] else 'FAILED'} {found[name]}", flush=True
        )
        result.put(parts=found)
    result.put(complete=True)
    print(result.path)
    return 0 if all(each["passed"] for each in found.values()) else 1


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--data", required=True, help="dataset with length 128, or --seq_len")
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--preset", default="large", help="of the recipe's model")
    parser.add_argument("--small_preset", default="small", help="of the model that is compared")
    parser.add_argument("--seq_len", type=int, default=128)
    parser.add_argument("--steps", type=int, default=300, help="of the recipe, or in FP8")
    parser.add_argument(
        "--batch", type=int, default=256, help="of the recipe; the others take an eighth"
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="most that one run may take")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=("precision", "resume", "recipe", "fp8"),
        default=["precision", "resume", "recipe"],
    )
    parser.add_argument(
        "--output", type=Path, help="file or folder of the result; scripts/bench/results without it"
    )
    return parser.parse_args()


def check_recipe(options: argparse.Namespace) -> dict[str, Any]:
    """The large model's first steps."""
    phase = {
        "seq_len": options.seq_len,
        "global_batch": options.batch,
        "steps": options.steps,
        "peak_lr": 1e-4,
        "warmup_steps": max(1, options.steps // 10),
    }
    config = write_config(
        options.work / "recipe.yaml",
        "bert-large",
        data=[options.data],
        phases=[phase],
        model={"preset": options.preset},
        compile=options.device == "cuda",
        checkpoint={"interval": 0},
        validation={"interval": 0, "num_instances": 512},
    )
    output = options.work / "recipe"
    finish(start(config, output, options.device), output, 60 * options.minutes)
    rows = rows_of(output)
    losses, norms = column(rows, "loss"), column(rows, "grad_norm")
    tenth = max(1, len(rows) // 10)
    first, last = fmean(losses[:tenth]), fmean(losses[-tenth:])
    skipped = int(rows[-1]["steps_skipped"])
    is_finite = all(map(math.isfinite, [*losses, *norms]))
    return {
        "passed": len(rows) == options.steps and is_finite and not skipped and last < first,
        "steps": len(rows),
        "loss_of_first_tenth": round(first, 4),
        "loss_of_last_tenth": round(last, 4),
        "largest_loss": max(losses),
        "grad_norm_median_and_largest": [sorted(norms)[len(norms) // 2], max(norms)],
        "gradients_refused": skipped,
        "losses": [round(each, 4) for each in losses],
    }


def check_precision(options: argparse.Namespace) -> dict[str, Any]:
    """The same steps in bf16 on the device and in fp32 on the CPU."""
    losses = {}
    for precision, device in (("bf16", options.device), ("fp32", "cpu")):
        config = write_small(
            options, f"precision-{precision}", PRECISION_STEPS, precision, dropout=0.0
        )
        output = options.work / f"precision-{precision}"
        finish(start(config, output, device), output, 60 * options.minutes)
        losses[precision] = column(rows_of(output), "loss")
    pairs = list(zip(losses["bf16"], losses["fp32"], strict=True))
    worst = max(abs(bf16 - fp32) / fp32 for bf16, fp32 in pairs)
    return {
        "passed": worst <= LOSS_BOUND,
        "largest_relative_difference": worst,
        "bound": LOSS_BOUND,
        "losses": pairs,
    }


def check_resume(options: argparse.Namespace) -> dict[str, Any]:
    """An undisturbed run, and one that is killed after its second checkpoint and continued."""
    steps, interval = 120, 10  # so many that a small model is not done before the kill
    for name in ("undisturbed", "killed"):
        config = write_small(
            options, name, steps, "bf16", dropout=0.1, checkpoint={"interval": interval}
        )
        output = options.work / name
        run = start(config, output, options.device)
        if name == "killed":
            killed_after = kill_after(run, output, 2 * interval + 3, 60 * options.minutes)
            run = start(config, output, options.device)
        finish(run, output, 60 * options.minutes)
    one, other = (rows_of(options.work / name) for name in ("undisturbed", "killed"))
    steps_made = [row["step"] for row in other]
    worst = max(
        abs(a - b) / a for a, b in zip(column(one, "loss"), column(other, "loss"), strict=True)
    )
    positions = [row["position"] for row in one] == [row["position"] for row in other]
    return {
        "passed": steps_made == list(range(1, steps + 1)) and positions and worst <= RESUME_BOUND,
        "killed_after_step": killed_after,
        "largest_relative_difference": worst,
        "bound": RESUME_BOUND,
        "same_instances": positions,
        "weights_equal_to_the_bit": weights_of(options.work / "undisturbed")
        == weights_of(options.work / "killed"),
    }


def check_fp8(options: argparse.Namespace) -> dict[str, Any]:
    """The same steps with the layers' products in FP8 and in bf16."""
    means: dict[bool, list[float]] = {}
    tenth = max(1, options.steps // 10)
    for is_fp8 in (False, True):
        output = options.work / ("fp8" if is_fp8 else "bf16")
        config = write_small(
            options, output.name, options.steps, "bf16", dropout=0.1, fp8=is_fp8, peak_lr=1e-3
        )
        finish(start(config, output, options.device), output, 60 * options.minutes)
        losses = column(rows_of(output), "loss")
        validation = column(rows_of(output, "validation"), "loss")
        means[is_fp8] = [
            *(fmean(losses[at : at + tenth]) for at in range(0, len(losses), tenth)),
            validation[-1],
        ]
    pairs = [
        (round(fp8, 4), round(bf16, 4)) for fp8, bf16 in zip(means[True], means[False], strict=True)
    ]
    worst = max(abs(fp8 - bf16) / bf16 for fp8, bf16 in pairs)
    return {
        "passed": worst <= FP8_BOUND,
        "largest_relative_difference": worst,
        "bound": FP8_BOUND,
        "fp8_and_bf16_losses_of_tenths_and_validation": pairs,
    }


def write_small(
    options: argparse.Namespace,
    name: str,
    steps: int,
    precision: str,
    dropout: float,
    fp8: bool = False,
    peak_lr: float = 1e-4,
    **changed: Any,
) -> Path:
    """Settings of a run of the small model."""
    phase = {
        "seq_len": options.seq_len,
        "global_batch": max(8, options.batch // 8),
        "steps": steps,
        "peak_lr": peak_lr,
        "warmup_steps": max(1, steps // 10),
    }
    overrides = {"hidden_dropout": dropout, "attention_dropout": dropout, "fp8": fp8}
    return write_config(
        options.work / f"{name}.yaml",
        None,
        data=[options.data],
        phases=[phase],
        model={"preset": options.small_preset, "overrides": overrides},
        precision=precision,
        micro_tokens=max(1_024, options.seq_len),
        validation={"interval": 0, "num_instances": 64},
        **{"checkpoint": {"interval": 0}, **changed},
    )


def weights_of(output: Path) -> bytes:
    """The last checkpoint's weights."""
    folders = (path.parent for path in output.glob("checkpoints/step-*/COMMITTED"))
    last = max(folders, key=lambda path: int(path.name.rpartition("-")[2]))
    return (last / "model.safetensors").read_bytes()


if __name__ == "__main__":
    raise SystemExit(main())
