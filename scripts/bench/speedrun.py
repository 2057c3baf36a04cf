"""A speedrun for two cores: who reaches a validation loss for the fewest CPU-seconds.

    python -m pipeline build --input "wiki_en/*.zst" "books_en/*.zst" --vocab_size 8192
    --seq_lens 32 128 --output DATA
    python -m scripts.bench.speedrun --data DATA --work FOLDER --arm muon-4e-3 --share 0.1
    --flags "--optimizer.name muon --peak_lr 4e-3 3e-3"
    python -m scripts.bench.speedrun --data DATA --work FOLDER --clock recipe muon-4e-3

An arm is the hour's recipe with some flags, at a share of its steps, and decays fully. Equal seeds
read in equal order. One process with one thread trains, so losses do not depend on the load. The
cost is steps x CPU-seconds (user and system) of a step. `--clock` measures the second of several
arms in turns, as a longer run's less a shorter one's: imports, start and validation are not in it.
Lines of JSON go to scripts/bench/results/speedrun.jsonl; an arm that is there is not run again.
Every call prints the board.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from scipy.stats import ttest_ind

from pipeline.shards.dataset import open_dataset
from scripts.checkout import ROOT, commit, make_parser

RECIPE = "configs/pretrain/bert-tiny-hour.yaml"
ROOT_HASH = "02e5819247f1f1624495daa317e7f8fb9807f7dbb121f899326876a6c5b71880"
RESULTS = ROOT / "scripts/bench/results/speedrun.jsonl"
COLUMNS = ("mlm_loss", "mlm_accuracy", "nsp_accuracy", "unigram_entropy", "instances")
ONCE = ["--zero_stage", "0", "--validation.interval", "0", "--checkpoint.interval", "0"]
Row = dict[str, Any]


def read_rows(kind: str) -> list[Row]:
    """The lines of one kind so far: arm or clock."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return [row for line in lines if (row := json.loads(line))["kind"] == kind]


def add_row(row: Row) -> None:
    """Keeps and prints a line."""
    line = json.dumps({"commit": commit()} | row)
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    print(line, flush=True)


def pretrain(
    own: argparse.Namespace, name: str, flags: str, steps: Sequence[int], seed: int = 0
) -> tuple[Row, float]:
    """The last validation of a run, and the CPU-seconds of its process."""
    output = f"{own.work}/{name}"
    command = [sys.executable, "-m", "trainer", "pretrain", "--config", str(ROOT / own.config)]
    command += ["--data", own.data, "--output", output, "--seed", str(seed), *ONCE, *flags.split()]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(f"{output}.log", "w") as log:
        command += ["--steps", *map(str, steps)]
        subprocess.run(command, env=environment, stdout=log, stderr=log, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    rows = map(json.loads, Path(output, "metrics.jsonl").read_text().splitlines())
    [*_, last] = (row for row in rows if row["split"] == "validation")
    return last, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run_arm(own: argparse.Namespace, steps: Sequence[int]) -> None:
    """A line for each seed that has none."""
    for seed in range(own.seeds):
        what = {"arm": own.arm, "share": own.share, "seed": seed}
        if any(what.items() <= row.items() for row in read_rows("arm")):
            continue
        name = f"{own.arm}-{own.share}-{seed}"
        last, seconds = pretrain(own, name, own.flags, steps, seed)
        found = {key: last[key] for key in COLUMNS if key in last}
        recipe = {"config": own.config, "flags": own.flags, "steps": steps}
        add_row({"kind": "arm", **what, **recipe, **found, "process_cpu_seconds": round(seconds)})


def run_clock(own: argparse.Namespace, num_phases: int) -> None:
    """CPU-seconds of a step of each phase, of arms in turns."""
    flags = {row["arm"]: row["flags"] for row in read_rows("arm")}
    rounds = defaultdict[str, list[list[float]]](list)
    for arm in own.clock * own.rounds:
        taken = []
        for longer in range(-1, num_phases):
            shutil.rmtree(f"{own.work}/clock", ignore_errors=True)
            steps = [2 + own.steps * (phase == longer) for phase in range(num_phases)]
            taken.append(pretrain(own, "clock", flags[arm], steps)[1])
        rounds[arm].append([round((each - taken[0]) / own.steps, 4) for each in taken[1:]])
    for arm, found in rounds.items():
        a_step = [statistics.median(phase) for phase in zip(*found, strict=True)]
        add_row({"kind": "clock", "arm": arm, "a_step": a_step, "rounds": found, "of": own.clock})


def format_board() -> str:
    """Markdown: arms by share and mean loss, with Welch's p against the best, and their cost."""
    arms = defaultdict[tuple[float, str], list[Row]](list)
    for row in read_rows("arm"):
        arms[-row["share"], row["arm"]].append(row)
    losses = {key: [row["mlm_loss"] for row in rows] for key, rows in arms.items()}
    costs = {row["arm"]: row["a_step"] for row in read_rows("clock")}
    lines = ["| share | arm | seeds | nats | p against the best | CPU-minutes |", "|---" * 6 + "|"]
    for share, arm in sorted(arms, key=lambda key: (key[0], statistics.fmean(losses[key]))):
        own, rivals = losses[share, arm], [each for key, each in losses.items() if key[0] == share]
        best = min(rivals, key=statistics.fmean)
        p = f"{ttest_ind(own, best, equal_var=False).pvalue:.3f}" if own[1:] and best[1:] else "-"
        pairs = zip(arms[share, arm][0]["steps"], costs.get(arm, ()), strict=False)
        cost = f"{sum(a * b for a, b in pairs) / 60:.1f}" if arm in costs else "-"
        mean = statistics.fmean(own)
        lines.append(f"| {-share} | {arm} | {len(own)} | {mean:.3f} | {p} | {cost} |")
    return "\n".join(lines)


def main() -> None:
    """Runs an arm or the clock, or prints the board."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", help="the dataset, built as above")
    parser.add_argument("--work", help="folder of the runs")
    parser.add_argument("--config", default=RECIPE)
    parser.add_argument("--arm", help="name of an arm to run")
    parser.add_argument("--flags", default="", help="flags of pretrain, in one string")
    parser.add_argument("--share", type=float, default=1.0, help="of the recipe's steps")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--clock", nargs="+", help="arms whose step is timed, in turns")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100, help="steps that are timed")
    own = parser.parse_args()
    if own.arm or own.clock:
        if (found := open_dataset(own.data).manifest.root_hash) != ROOT_HASH:
            raise ValueError(f"{own.data} has the root hash {found}; the board's is {ROOT_HASH}")
        phases = yaml.safe_load((ROOT / own.config).read_text())["phases"]
        if own.arm:
            run_arm(own, [max(1, round(own.share * phase["steps"])) for phase in phases])
        else:
            run_clock(own, len(phases))
    print(format_board())


if __name__ == "__main__":
    main()
