"""A speedrun for two cores: who reaches a validation loss for the fewest CPU-seconds.

    python -m pipeline build --input "wiki_en/*.zst" "books_en/*.zst" --vocab_size 8192
    --seq_lens 32 128 --output DATA
    python -m scripts.bench.speedrun --data DATA --work FOLDER --arms recipe muon-4e-3 --share 0.1
    python -m scripts.bench.speedrun --data DATA --work FOLDER --clock recipe muon-4e-3

An arm is the hour's recipe with the flags of scripts/bench/speedrun.yaml, at a share of its steps,
and decays fully. Equal seeds read in equal order. One process with one thread trains, so losses do
not depend on the load. The cost is steps x CPU-seconds (user and system) from the row of one step
to that of the next: imports, start and validation are not in it. As a busy machine makes a step
dearer, `--clock` times short runs of several arms in turns. Lines of JSON go to
scripts/bench/results/speedrun.jsonl; an arm that is there is not run again. Every call prints the
board.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml
from scipy.stats import ttest_ind

from pipeline.shards.dataset import open_dataset
from scripts.checkout import ROOT, commit, make_parser

ROOT_HASH = "02e5819247f1f1624495daa317e7f8fb9807f7dbb121f899326876a6c5b71880"
ARMS: dict[str, str] = yaml.safe_load((ROOT / "scripts/bench/speedrun.yaml").read_text())
RESULTS = ROOT / "scripts/bench/results/speedrun.jsonl"
COLUMNS = ("mlm_loss", "mlm_accuracy", "nsp_accuracy", "unigram_entropy", "instances")
ONCE = ["--zero_stage", "0", "--validation.interval", "0", "--checkpoint.interval", "0"]
Row = dict[str, Any]


def read_rows(kind: str) -> list[Row]:
    """The lines of one kind: arm or clock."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return [row for line in lines if (row := json.loads(line))["kind"] == kind]


def add_row(row: Row) -> None:
    """Keeps and prints a line."""
    line = json.dumps({"commit": commit()} | row)
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    print(line, flush=True)


def pretrain(
    own: argparse.Namespace, name: str, arm: str, steps: Sequence[int], *flags: str
) -> tuple[Row, list[float]]:
    """The last validation of a run, and the mean CPU-seconds of a step of each phase."""
    output = Path(own.work, name)
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "-m", "trainer", "pretrain", "--config", str(ROOT / own.config)]
    command += ["--data", own.data, "--output", str(output), *ONCE, *flags]
    command += [*ARMS[arm].split(), "--steps", *map(str, steps)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    output.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{output}.log", "w") as log:
        process = psutil.Popen(command, env=environment, stdout=log, stderr=log)
    metrics, marks = output / "metrics.jsonl", [(0, 0.0)]
    while process.poll() is None:
        time.sleep(0.02)
        if metrics.exists() and (size := metrics.stat().st_size) > marks[-1][0]:
            marks.append((size, sum(process.cpu_times()[:2])))
    if process.returncode:
        raise RuntimeError(f"{arm} ended with {process.returncode}; see {output}.log")
    lines = metrics.read_bytes().splitlines(keepends=True)
    rows = [json.loads(line) for line in lines]
    ends = itertools.accumulate(map(len, lines))
    spent = [next((cpu for size, cpu in marks if size >= end), marks[-1][1]) for end in ends]
    taken = defaultdict[int, list[float]](list)
    for before, row, start, stop in zip(rows, rows[1:], spent, spent[1:], strict=False):
        if before["split"] == row["split"] == "train":
            taken[row["phase"]].append(stop - start)
    a_step = [round(statistics.fmean(taken[phase]), 4) for phase in range(len(steps))]
    return next(row for row in reversed(rows) if row["split"] == "validation"), a_step


def phases_of(own: argparse.Namespace, arm: str) -> tuple[str, list[Row]]:
    """An arm's config and its phases."""
    words = ARMS[arm].split()
    config = words[words.index("--config") + 1] if "--config" in words else own.config
    return config, yaml.safe_load((ROOT / config).read_text())["phases"]


def run_arm(own: argparse.Namespace, arm: str, seed: int) -> None:
    """The line of an arm and a seed, unless there is one."""
    what = {"arm": arm, "share": own.share, "seed": seed}
    if any(what.items() <= row.items() for row in read_rows("arm")):
        return
    config, phases = phases_of(own, arm)
    steps = [max(1, round(own.share * phase["steps"])) for phase in phases]
    last, a_step = pretrain(own, f"{arm}-{own.share}-{seed}", arm, steps, "--seed", str(seed))
    found = {key: last[key] for key in COLUMNS if key in last} | {"a_step": a_step}
    recipe = {"config": config, "flags": ARMS[arm], "steps": steps}
    add_row({"kind": "arm"} | what | recipe | found)


def run_clock(own: argparse.Namespace) -> None:
    """CPU-seconds of a step of each phase, of arms in turns."""
    rounds = defaultdict[str, list[list[float]]](list)
    for arm in own.clock * own.rounds:
        flags = ("--validation.num_instances", "1")
        steps = [own.steps] * len(phases_of(own, arm)[1])
        rounds[arm].append(pretrain(own, f"clock-{arm}", arm, steps, *flags)[1])
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
    parser.add_argument("--config", default="configs/pretrain/bert-tiny-hour.yaml")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=[], help="arms to run")
    parser.add_argument("--share", type=float, default=1.0, help="of the recipe's steps")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--clock", nargs="+", choices=ARMS, default=[], help="arms to time")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="of a phase of a turn")
    own = parser.parse_args()
    found = open_dataset(own.data).manifest.root_hash if own.data else ROOT_HASH
    if found != ROOT_HASH:
        raise ValueError(f"{own.data} has the root hash {found}; the board's is {ROOT_HASH}")
    for arm, seed in itertools.product(own.arms, range(own.seeds)):
        run_arm(own, arm, seed)
    run_clock(own)
    print(format_board())


if __name__ == "__main__":
    main()
