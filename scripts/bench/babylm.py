"""From raw text to a score on BLiMP, and its bill: how much of English a small model has learned.

    python -m scripts.bench.babylm --track small --model mini --text TEXT --pairs BLIMP --work WORK

TEXT is a folder with wiki_en/ and books_en/, BLIMP what `evaluate --pairs` takes. The track's words
are counted by white space in the files that its config names, tags of WikiExtractor included. Four
stages follow, each a command of the product in processes of its own: build, train, export, score.
WORK/MODEL-SEED/bill.jsonl gets a line when a stage begins and one with its CPU-seconds (user and
system, of all its processes) when it ends or is stopped. A finished stage is not run again, and the
trainer goes on from its newest checkpoint, so the same command again goes on. One thread trains:
runs on CPUs of one kind are equal to the last bit.

`--build_flags` and `--train_flags` change the settings, for example to compare another kind of
instances. The track trains in bf16, in which a CPU without instructions for it (AMX, AVX512-BF16)
takes 50 times as long as in fp32. Such a CPU is refused, with the flags that help.

The last line of the output is JSON: the score (the mean over BLiMP's 12 phenomena), each
phenomenon, CPU-minutes of each stage, the price of all but scoring, root hash, commit, versions.
"""

import argparse
import codecs
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from pipeline.command_line.program import parse_settings
from pipeline.documents.files import read_blocks
from pipeline.documents.parts import find_inputs
from pipeline.documents.text_files import whole_file
from pipeline.shards.dataset import open_dataset
from pipeline.storage.quoting import join_names
from scripts.bench.measured import print_result
from scripts.checkout import ROOT, make_parser
from trainer.cli import COMMANDS
from trainer.minimal_pairs.read import PHENOMENON, read_pairs
from trainer.process.precision import warn_of_slow_bf16
from trainer.process.ranks import describe_device

SETTINGS = ROOT / "scripts/bench/babylm.yaml"
TRAIN = "train"
SCORE = "score"
PACKAGES = ("torch", "deepspeed", "apache-beam", "tokenizers", "numpy")
NUM_PHENOMENA = 12
Row = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """One command of the product.

    Attributes:
        name: The name in the bill.
        arguments: The command after `python -m`.
    """

    name: str
    arguments: Sequence[str]


def count_words(blocks: Iterable[bytes]) -> int:
    """Returns the number of words between white space in a text in UTF-8 that comes in blocks.

    White space is that of Unicode, as in `wc -w` with a locale of UTF-8.
    """
    count = 0
    tail = ""
    for piece in codecs.iterdecode(blocks, "utf-8"):
        text = tail + piece
        words = text.split()
        # The last word may go on in the next block.
        tail = words.pop() if words and not text[-1:].isspace() else ""
        count += len(words)
    return count + bool(tail)


def count_sources(data_config: Path, text: Path, most_words: int) -> dict[str, int]:
    """Returns the number of words of each source of a build's config.

    Args:
        data_config: The config; its inputs are relative to `text`.
        text: The folder of the texts.
        most_words: The most words that all sources may have.

    Raises:
        FileNotFoundError: An input is not there.
        ValueError: The sources have more words.
    """
    counts = {}
    for source in yaml.safe_load(data_config.read_text())["sources"]:
        inputs = find_inputs([str(text / pattern) for pattern in source["input"]])
        files = [whole_file(file.url) for file in inputs]
        counts[source["name"]] = sum(count_words(read_blocks(file)) for file in files)
    total = sum(counts.values())
    if total > most_words:
        raise ValueError(
            f"{data_config}: its sources in {text} have {total:,} words, expected at most"
            f" {most_words:,}; name fewer files"
        )
    return counts


def mean_of_phenomena(pairs: Mapping[str, Any]) -> tuple[float, dict[str, float]]:
    """Returns the mean of the accuracies of BLiMP's phenomena, and each of them, in percent.

    Args:
        pairs: What `evaluate --pairs` writes.

    Raises:
        ValueError: The pairs are not of BLiMP's 12 phenomena.
    """
    found = {
        group[PHENOMENON]: 100 * group["accuracy"]
        for group in pairs["groups"]
        if PHENOMENON in group and "UID" not in group
    }
    refuse_other_phenomena(found)
    return sum(found.values()) / len(found), found


def check_pairs(pairs: str) -> None:
    """Refuses pairs that give no score, before a model is trained for them.

    Args:
        pairs: BLiMP, as `evaluate --pairs` takes it.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The pairs are malformed, or are not of BLiMP's 12 phenomena.
    """
    pair_set = read_pairs(pairs, limit=1)
    has_phenomena = PHENOMENON in pair_set.columns
    refuse_other_phenomena({pair.groups[0] for pair in pair_set.pairs if has_phenomena})


def refuse_other_phenomena(found: Collection[str]) -> None:
    """Raises ValueError if the phenomena of pairs are not as many as BLiMP's 12."""
    if len(found) != NUM_PHENOMENA:
        names = join_names(sorted(found)) or "none"
        expected = f"expected BLiMP's {NUM_PHENOMENA}; give all of its files as --pairs"
        raise ValueError(f"the pairs have {len(found)} phenomena ({names}), {expected}")


def read_bill(path: Path) -> list[Row]:
    """Returns the lines of a bill, none if there is no such file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def sum_bill(lines: Iterable[Row]) -> dict[str, float]:
    """Returns the CPU-seconds of each stage, of all attempts together.

    Raises:
        ValueError: An attempt has no end, so nobody knows what it cost.
    """
    totals: dict[str, float] = {}
    begun: str | None = None
    for line in lines:
        if begun is not None and "cpu_seconds" not in line:
            break
        begun = None if "cpu_seconds" in line else line["stage"]
        totals[line["stage"]] = totals.get(line["stage"], 0.0) + line.get("cpu_seconds", 0.0)
    if begun is not None:
        cure = "begin again with another --work"
        raise ValueError(f"an attempt of {begun} was killed and its CPU is not known; {cure}")
    return totals


def format_price(cpu_minutes: float, price: Mapping[str, Any]) -> str:
    """Returns what so many CPU-minutes cost, where and when."""
    usd = cpu_minutes / 60 * price["usd_per_hour"] / price["vcpus"]
    return f"{usd:.2f} USD ({price['machine']}, {price['date']})"


def find_end(lines: Iterable[Row], stage: str) -> str | None:
    """Returns the command with which a stage of the bill ended well, or None if none did."""
    command = None
    for line in lines:
        if line["stage"] == stage:
            command = line.get("command", command)
            if line.get("exit") == 0:
                return str(command)
    return None


def run_stage(stage: Stage, folder: Path, where: Path) -> None:
    """Runs a stage that is not finished, and adds its CPU to the bill.

    Args:
        stage: The stage.
        folder: The folder of the bill and of the stage's log.
        where: The folder that the command is run in.

    Raises:
        RuntimeError: The command failed. The message names its log.
        ValueError: The stage was finished with another command.
    """
    bill = folder / "bill.jsonl"
    command = [sys.executable, "-m", *stage.arguments]
    finished = find_end(read_bill(bill), stage.name)
    if finished is not None:
        if finished.partition(" -m ")[2] != " ".join(stage.arguments):
            cure = "give another --work, or the flags of that run"
            raise ValueError(f"{folder}: {stage.name} was run as {finished!r}; {cure}")
        return
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    log = folder / f"{stage.name}.log"
    print(f"{stage.name}: begins; its log is {log}", file=sys.stderr, flush=True)
    add_line(bill, {"stage": stage.name, "command": " ".join(command)})
    began = time.time()
    before = children_seconds()
    with log.open("a") as output:
        process = subprocess.Popen(
            command, cwd=where, env=environment, stdout=output, stderr=output
        )
        code = wait_for(process)
    spent = round(children_seconds() - before, 2)
    seconds = round(time.time() - began, 1)
    add_line(bill, {"stage": stage.name, "exit": code, "cpu_seconds": spent, "seconds": seconds})
    if code:
        raise RuntimeError(f"{stage.name} ended with {code}; see {log}, and run the command again")


def wait_for(process: "subprocess.Popen[bytes]") -> int:
    """Returns the exit code of a command. What stops this program stops the command instead."""
    handlers = {
        # A terminal's Ctrl-C reaches the command too, and it saves.
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: process.terminate()),
    }
    try:
        return process.wait()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def children_seconds() -> float:
    """Returns the CPU-seconds of all child processes that have ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def add_line(path: Path, line: Row) -> None:
    """Adds a JSON line to a file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def list_stages(own: argparse.Namespace, track: Mapping[str, Any], folder: Path) -> list[Stage]:
    """Returns the four stages of a model."""
    data = str(folder / "data")
    run = str(folder / "run")
    model = str(folder / "model")
    build = ["pipeline", "build", "--config", str(ROOT / track["data"]), "--output", data]
    build += own.build_flags.split()
    train = ["trainer", "pretrain", "--config", str(ROOT / track["config"])]
    train += [*track["models"][own.model].split()]
    train += ["--data", data, "--output", run, "--seed", str(own.seed)]
    train += own.train_flags.split()
    export = ["trainer", "export", run, "--output", model]
    pairs = own.pairs if "://" in own.pairs else str(Path(own.pairs).resolve())
    score = ["trainer", "evaluate", "--model", model, "--pairs", pairs]
    score += ["--output", str(folder / "pairs.json")]
    commands = {"build": build, TRAIN: train, "export": export, SCORE: score}
    return [Stage(name, command) for name, command in commands.items()]


def describe_run(metrics: Path) -> Row:
    """Returns what a finished run read and reached: steps, tokens, and its last validation."""
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    last = {row["split"]: row for row in rows}
    validation = last["validation"]
    return {
        "steps": last["train"]["step"],
        "tokens": sum(row["tokens"] for row in rows if row["split"] == "train"),
        "mlm_loss": validation["mlm_loss"],
        "mlm_accuracy": validation["mlm_accuracy"],
        "unigram_entropy": validation["unigram_entropy"],
    }


def main() -> None:
    """Runs the stages that are not finished and prints the result, or what is wrong in a line."""
    arguments = parse_arguments()
    settings = yaml.safe_load(Path(arguments.settings).read_text())
    try:
        run_track(arguments, settings["tracks"][arguments.track], settings["price"])
    except (OSError, RuntimeError, ValueError) as error:
        raise SystemExit(f"babylm: {error}") from error


def refuse_slow_precision(train: Stage) -> None:
    """Raises ValueError if a stage trains in a number format in which this CPU is slow."""
    settings = parse_settings("pretrain", COMMANDS["pretrain"], train.arguments[2:])
    precision = settings.precision or "fp32"
    device = describe_device(torch.device("cpu"))
    warning = warn_of_slow_bf16(device, precision, settings.optimizer.muon_precision)
    if warning:
        raise ValueError(f"{warning}; give these flags in --train_flags")


def run_track(own: argparse.Namespace, track: Mapping[str, Any], price: Mapping[str, Any]) -> None:
    """Runs the stages of a model that are not finished and prints the result.

    Args:
        own: The command line's values.
        track: The settings of its track.
        price: The machine whose minutes are charged.
    """
    if own.model not in track["models"]:
        known = ", ".join(track["models"])
        raise ValueError(f"track {own.track} has no model {own.model}; choose one of {known}")
    folder = Path(own.work, f"{own.model}-{own.seed}").resolve()
    check_pairs(own.pairs)
    folder.mkdir(parents=True, exist_ok=True)
    words = count_sources(ROOT / track["data"], Path(own.text), track["most_words"])
    sum_bill(read_bill(folder / "bill.jsonl"))
    stages = list_stages(own, track, folder)
    (train,) = (stage for stage in stages if stage.name == TRAIN)
    if find_end(read_bill(folder / "bill.jsonl"), TRAIN) is None:
        refuse_slow_precision(train)
    for stage in stages:
        run_stage(stage, folder, Path(own.text))
    seconds = sum_bill(read_bill(folder / "bill.jsonl"))
    minutes = {stage: round(spent / 60, 1) for stage, spent in seconds.items()}
    to_model = round(sum(spent for name, spent in minutes.items() if name != SCORE), 1)
    pairs = json.loads((folder / "pairs.json").read_text())
    score, phenomena = mean_of_phenomena(pairs)
    print_result(
        "babylm",
        {
            "track": own.track,
            "model": own.model,
            "flags": track["models"][own.model],
            "build_flags": own.build_flags,
            "train_flags": own.train_flags,
            "seed": own.seed,
        },
        PACKAGES,
        words=words | {"all": sum(words.values())},
        root_hash=open_dataset(str(folder / "data")).manifest.root_hash,
        **describe_run(folder / "run/metrics.jsonl"),
        score=round(score, 2),
        standard_error=round(100 * pairs["standard_error_of_mean"], 2),
        phenomena={name: round(accuracy, 1) for name, accuracy in phenomena.items()},
        num_pairs=pairs["num_pairs"],
        cpu_minutes=minutes | {"to_model": to_model, "most": track["most_cpu_minutes"]},
        price=format_price(to_model, price),
    )


def parse_arguments() -> argparse.Namespace:
    """Returns the command line's values."""
    parser = make_parser(__doc__)
    parser.add_argument("--settings", default=str(SETTINGS), help="tracks and price")
    parser.add_argument("--track", choices=["small"], default="small")
    parser.add_argument("--model", choices=["tiny", "mini", "small"], default="mini")
    parser.add_argument("--text", required=True, help="folder of the texts")
    parser.add_argument("--pairs", required=True, help="BLiMP, as evaluate --pairs takes it")
    parser.add_argument("--work", required=True, help="folder of datasets and runs")
    parser.add_argument("--seed", type=int, default=0, help="of weights and of the order")
    parser.add_argument("--build_flags", default="", help="more flags of build, in one argument")
    parser.add_argument("--train_flags", default="", help="more flags of pretrain, the same")
    return parser.parse_args()


if __name__ == "__main__":
    main()
