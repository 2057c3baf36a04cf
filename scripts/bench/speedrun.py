"""Judges recipes for two cores: which one reaches a validation loss for the fewest CPU-seconds.

    git clone . OLD && cd OLD && git checkout f3e7f8bd
    python -m pipeline build --input "TEXT/wiki_en/*.zst" "TEXT/books_en/*.zst" --vocab_size 8192
    --seq_lens 32 128 --output DATA
    cd ..
    python -m scripts.bench.speedrun --data DATA --work FOLDER --arms recipe muon-4e-3 --share 0.1
    python -m scripts.bench.speedrun --data DATA --work FOLDER --arms half --pairs BLIMP
    python -m scripts.bench.speedrun --data DATA --work FOLDER --clock recipe muon-4e-3

TEXT and DATA are absolute paths. All arms read one dataset. A build of commit f3e7f8bd makes it;
later versions end some sentences elsewhere, so that their losses could not be compared with those
on the board.

An arm is the hour's recipe with the flags of scripts/bench/speedrun.yaml, at a share of its steps,
and decays fully. Equal seeds read in equal order. One process with one thread trains, so losses do
not depend on the load. The cost is steps x CPU-seconds (user and system) from the row of one step
to that of the next: imports, start and validation are not in it. A busy machine makes a step
dearer, so `--clock` times short runs of several arms in turns.

With `--pairs`, `trainer evaluate --pairs` measures the final model of every arm on BLiMP, which is
a folder, file or glob of it. An arm that was run before without pairs is measured if its run is
still in FOLDER; otherwise it is trained again.

JSON lines are added to scripts/bench/results/speedrun.jsonl. Their key "kind" is "arm" (losses of
an arm and a seed), "pairs" (its BLiMP score) or "clock" (CPU-seconds of steps). An arm and a seed
are not run again if their line, and with `--pairs` also that of their score, is there.
Every call prints the board.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
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
from scripts.bench.babylm import check_pairs, mean_of_phenomena
from scripts.checkout import ROOT, commit, make_parser

ROOT_HASH = "02e5819247f1f1624495daa317e7f8fb9807f7dbb121f899326876a6c5b71880"
ARMS: dict[str, str] = yaml.safe_load((ROOT / "scripts/bench/speedrun.yaml").read_text())
RESULTS = ROOT / "scripts/bench/results/speedrun.jsonl"
COLUMNS = ("mlm_loss", "mlm_accuracy", "nsp_accuracy", "unigram_entropy", "instances")
ONCE = ["--zero_stage", "0", "--validation.interval", "0", "--checkpoint.interval", "0"]
Row = dict[str, Any]


def read_rows(kind: str) -> list[Row]:
    """Returns the lines of one kind: "arm", "pairs" or "clock"."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return [row for line in lines if (row := json.loads(line))["kind"] == kind]


def add_row(row: Row) -> None:
    """Adds a line to the results, with the commit, and prints it."""
    line = json.dumps({"commit": commit()} | row)
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    print(line, flush=True)


def pretrain(
    own: argparse.Namespace, name: str, arm: str, steps: Sequence[int], *flags: str
) -> tuple[Row, list[float]]:
    """Trains an arm in a process of its own.

    Args:
        own: The command line's values.
        name: The name of the run's folder in `--work`. A folder of that name is replaced.
        arm: The arm.
        steps: The number of steps of each phase.
        flags: Further flags of `pretrain`.

    Returns:
        The row of the run's last validation, and the mean CPU-seconds of a step of each phase.

    Raises:
        RuntimeError: The run failed. The message names its log.
    """
    output = Path(own.work, name)
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "-m", "trainer", "pretrain", "--config", str(ROOT / own.config)]
    command += ["--data", own.data, "--output", str(output), *ONCE, *flags]
    command += [*ARMS[arm].split(), "--steps", *map(str, steps)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    output.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{output}.log", "w") as log:
        process = psutil.Popen(command, env=environment, stdout=log, stderr=log)
    metrics = output / "metrics.jsonl"
    marks = [(0, 0.0)]
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
    return last_validation(rows), a_step


def phases_of(own: argparse.Namespace, arm: str) -> tuple[str, list[Row]]:
    """Returns the recipe that an arm is based on, and the phases of that recipe."""
    words = ARMS[arm].split()
    config = words[words.index("--config") + 1] if "--config" in words else own.config
    return config, yaml.safe_load((ROOT / config).read_text())["phases"]


def has_row(kind: str, key: Row) -> bool:
    """Returns whether the results have a line of a kind with these values."""
    return any(key.items() <= row.items() for row in read_rows(kind))


def run_arm(own: argparse.Namespace, arm: str, seed: int) -> None:
    """Trains an arm with a seed and measures it, as far as the results lack its lines."""
    key = {"arm": arm, "share": own.share, "seed": seed}
    name = f"{arm}-{own.share}-{seed}"
    needs_pairs = own.pairs is not None and not has_row("pairs", key)
    has_losses = has_row("arm", key)
    if has_losses and not needs_pairs:
        return
    config, phases = phases_of(own, arm)
    steps = [max(1, round(own.share * phase["steps"])) for phase in phases]
    if not (has_losses and is_finished(Path(own.work, name), sum(steps))):
        last, a_step = pretrain(own, name, arm, steps, "--seed", str(seed))
        losses = {column: last[column] for column in COLUMNS if column in last}
        recipe = {"config": config, "flags": ARMS[arm], "steps": steps}
        if not has_losses:
            add_row({"kind": "arm"} | key | recipe | losses | {"a_step": a_step})
    if needs_pairs:
        # An arm that is trained again on another machine may differ a little: its loss shows it.
        loss = last_validation(read_metrics(Path(own.work, name)))["mlm_loss"]
        add_row({"kind": "pairs"} | key | {"mlm_loss": loss} | score_run(own, name))


def read_metrics(run: Path) -> list[Row]:
    """Returns the rows of a run's metrics.jsonl; none if there is no such file."""
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def last_validation(rows: Sequence[Row]) -> Row:
    """Returns the row of the last validation among rows of metrics.jsonl."""
    return next(row for row in reversed(rows) if row["split"] == "validation")


def is_finished(run: Path, last_step: int) -> bool:
    """Returns whether a run has saved its last step, and was validated there."""
    checkpoint = run / f"checkpoints/step-{last_step:08d}/COMMITTED"
    steps = [row["step"] for row in read_metrics(run) if row["split"] == "validation"]
    return checkpoint.exists() and last_step in steps


def score_run(own: argparse.Namespace, name: str) -> Row:
    """Returns the BLiMP score of a run: the mean of the phenomena, in percent, and each of them.

    Raises:
        RuntimeError: The command failed. The message names its log.
        ValueError: The pairs are not those of BLiMP.
    """
    run = Path(own.work, name)
    output = run.with_name(f"{name}.pairs.json")
    log = run.with_name(f"{name}.pairs.log")
    command = [sys.executable, "-m", "trainer", "evaluate", "--model", str(run)]
    command += ["--pairs", own.pairs, "--output", str(output)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with log.open("w") as file:
        ended = subprocess.run(command, env=environment, stdout=file, stderr=file, check=False)
    if ended.returncode:
        raise RuntimeError(f"{name} could not be scored ({ended.returncode}); see {log}")
    pairs = json.loads(output.read_text())
    score, phenomena = mean_of_phenomena(pairs)
    return {
        "score": round(score, 2),
        "standard_error": round(100 * pairs["standard_error_of_mean"], 2),
        "num_pairs": pairs["num_pairs"],
        "phenomena": {phenomenon: round(value, 1) for phenomenon, value in phenomena.items()},
    }


def run_clock(own: argparse.Namespace) -> None:
    """Adds a line with the CPU-seconds of a step of each phase for every arm, timed in turns."""
    rounds = defaultdict[str, list[list[float]]](list)
    for arm in own.clock * own.rounds:
        flags = ("--validation.num_instances", "1")
        steps = [own.steps] * len(phases_of(own, arm)[1])
        rounds[arm].append(pretrain(own, f"clock-{arm}", arm, steps, *flags)[1])
    for arm, found in rounds.items():
        a_step = [statistics.median(phase) for phase in zip(*found, strict=True)]
        add_row({"kind": "clock", "arm": arm, "a_step": a_step, "rounds": found, "of": own.clock})


def format_board() -> str:
    """Returns the arms as a table in Markdown, sorted by share and by mean loss.

    The p of an arm is that of Welch's test against the best arm of the same share. BLiMP is the
    mean of the seeds that were measured, with the standard error that the choice of pairs gives.
    """
    arms = defaultdict[tuple[float, str], list[Row]](list)
    for row in read_rows("arm"):
        arms[-row["share"], row["arm"]].append(row)
    losses = {key: [row["mlm_loss"] for row in rows] for key, rows in arms.items()}
    costs = {row["arm"]: row["a_step"] for row in read_rows("clock")}
    scores = defaultdict[tuple[float, str], list[Row]](list)
    for row in read_rows("pairs"):
        scores[-row["share"], row["arm"]].append(row)
    head = "| share | arm | seeds | nats | p against the best | CPU-minutes | BLiMP |"
    lines = [head, "|---" * 7 + "|"]
    for share, arm in sorted(arms, key=lambda key: (key[0], statistics.fmean(losses[key]))):
        own = losses[share, arm]
        rivals = [each for key, each in losses.items() if key[0] == share]
        best = min(rivals, key=statistics.fmean)
        p = f"{ttest_ind(own, best, equal_var=False).pvalue:.3f}" if own[1:] and best[1:] else "-"
        pairs = zip(arms[share, arm][0]["steps"], costs.get(arm, ()), strict=False)
        cost = f"{sum(a * b for a, b in pairs) / 60:.1f}" if arm in costs else "-"
        mean = statistics.fmean(own)
        blimp = format_score(scores[share, arm])
        lines.append(f"| {-share} | {arm} | {len(own)} | {mean:.3f} | {p} | {cost} | {blimp} |")
    return "\n".join(lines)


def format_score(rows: Sequence[Row]) -> str:
    """Returns the mean BLiMP score of some seeds, with its standard error; "-" if there are none.

    All seeds are measured on the same pairs, so more seeds do not make the error smaller.
    """
    if not rows:
        return "-"
    score = statistics.fmean(row["score"] for row in rows)
    error = statistics.fmean(row["standard_error"] for row in rows)
    seeds = "" if len(rows) == 1 else f" ({len(rows)} seeds)"
    return f"{score:.1f} +- {error:.1f}{seeds}"


def main() -> None:
    """Runs what the command line asks for and prints the board, or what is wrong in a line."""
    try:
        run_all(parse_arguments())
    except (OSError, RuntimeError, ValueError) as error:
        raise SystemExit(f"speedrun: {error}") from error


def parse_arguments() -> argparse.Namespace:
    """Returns the command line's values."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", help="the dataset, built as above")
    parser.add_argument("--work", help="folder of the runs")
    parser.add_argument("--config", default="configs/pretrain/bert-tiny-hour.yaml")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=[], help="arms to run")
    parser.add_argument("--share", type=float, default=1.0, help="of the recipe's steps")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--pairs", help="BLiMP, as evaluate --pairs takes it: scores the arms")
    parser.add_argument("--clock", nargs="+", choices=ARMS, default=[], help="arms to time")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="of a phase of a turn")
    own = parser.parse_args()
    if (own.arms or own.clock) and not (own.data and own.work):
        parser.error("--arms and --clock need --data and --work")
    return own


def run_all(own: argparse.Namespace) -> None:
    """Runs arms, scores them, times arms in turns, and prints the board.

    Raises:
        ValueError: The dataset is another one, or the pairs are not those of BLiMP.
        RuntimeError: A run failed. The message names its log.
    """
    found = open_dataset(own.data).manifest.root_hash if own.data else ROOT_HASH
    if found != ROOT_HASH:
        cure = "build the dataset by commit f3e7f8bd, as the top of this file says"
        raise ValueError(f"{own.data} has the root hash {found}, expected {ROOT_HASH}; {cure}")
    if own.pairs is not None:
        check_pairs(own.pairs)
    for arm, seed in itertools.product(own.arms, range(own.seeds)):
        run_arm(own, arm, seed)
    run_clock(own)
    print(format_board())


if __name__ == "__main__":
    main()
