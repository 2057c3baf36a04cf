"""Instances per CPU-second of a whole build, text to finished shards, everything in: one JSON line.

    python -m scripts.bench.build --input 'wiki/*.zst' --vocab vocab.txt --passes 5
    python -m scripts.bench.build ... --workers 1 2              # what the second worker gains
    python -m scripts.bench.build ... --copies 10                # ten times the corpus
    python -m scripts.bench.build ... --reference_python python  # google-research/bert's beside it

CPU seconds are those of every process of the build, start-up of Python and Beam included. With
`--copies N` the corpus is written N times as JSON Lines, with one word of every document changed in
each copy, so that none is a duplicate. The reference (scripts/bench/reference_build.py) gets a
sample of the same text already split into sentences; its own start-up and its import of TensorFlow
are left out; its writing of TFRecords is in where that has TensorFlow. Times of stages are sampled
(scripts/bench/stages.py says what `path_seconds` is); `load` is that of the machine before.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard

from pipeline.text.sentences import split_sentences
from scripts.bench.measured import iterate_documents, print_result, summarize
from scripts.bench.stages import run_stages
from scripts.checkout import make_parser


def write_copies(patterns: Sequence[str], copies: int, folder: Path) -> str:
    """Writes all documents several times as JSON Lines, and returns the glob of the files.

    Each copy is a file of its own. The first word of its documents ends in the number of the copy,
    so that no two documents are equal.
    """
    for copy in range(copies):
        with zstandard.open(folder / f"copy-{copy:03d}.jsonl.zst", "wt", encoding="utf-8") as file:
            for text in iterate_documents(patterns):
                file.write(
                    json.dumps({"text": text.replace(" ", f"x{copy} ", 1)}, ensure_ascii=False)
                    + "\n"
                )
    return f"{folder}/*.jsonl.zst"


def measure_build(arguments: Sequence[str]) -> dict[str, Any]:
    """Runs one build in processes of its own and measures it."""
    with tempfile.TemporaryDirectory(prefix="beambert-bench-") as folder:
        output = Path(folder, "data")
        load = os.getloadavg()[0]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "pipeline", "build", "--output", str(output), *arguments]
        found = run_stages(command, output)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        manifest = json.loads(Path(output, "manifest.json").read_text())
    cpu = (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)
    instances = sum(group["instances"] for group in manifest["groups"])
    return {
        "load": round(load, 1),
        "instances": instances,
        "corpus_bytes": manifest["counters"]["cleaned_bytes"],
        "corpus_tokens": manifest["counters"]["distinct_tokens"],
        "seconds": round(found.seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "instances_per_cpu_second": round(instances / cpu),
        "corpus_tokens_per_cpu_second": round(manifest["counters"]["distinct_tokens"] / cpu),
        "peak_mb_of_largest_process": round(found.peak_bytes / 2**20),
        "stages": found.stages,
        "root_hash": manifest["root_hash"],
    }


def compare_workers(runs: Mapping[int, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Medians of wall and path by stage: how much faster than the first number of workers."""
    first, *others = runs
    return {
        f"{other} workers": {
            stage: {
                measure: round(
                    _median(runs[first], stage, measure)
                    / max(0.01, _median(runs[other], stage, measure)),
                    2,
                )
                for measure in ("seconds", "path_seconds")
            }
            for stage in (*runs[first][0]["stages"], "all")
        }
        for other in others
    }


def _median(runs: Sequence[Mapping[str, Any]], stage: str, measure: str) -> float:
    """Returns the median over runs of a stage's measure; "all" adds up the stages of each run."""
    rows = [[row for name, row in run["stages"].items() if stage in (name, "all")] for run in runs]
    return float(statistics.median(sum(row[measure] for row in found) for found in rows))


def measure_reference(
    python: str, patterns: Sequence[str], vocab: str, passes: int, megabytes: float
) -> dict[str, Any]:
    """Runs the reference's program on the first documents of the input."""
    with tempfile.TemporaryDirectory(prefix="beambert-bench-") as folder:
        sample = Path(folder, "sentences.txt")
        num_characters = 0
        with sample.open("w", encoding="utf-8") as file:
            for text in iterate_documents(patterns):
                file.write("\n".join(split_sentences(text)) + "\n\n")
                num_characters += len(text)
                if num_characters > megabytes * 1e6:
                    break
        command = [
            python,
            str(Path(__file__).with_name("reference_build.py")),
            "--input",
            str(sample),
        ]
        command += ["--vocab", vocab, "--passes", str(passes), "--output", f"{folder}/out.tfrecord"]
        result = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    stages = found["cpu_seconds_by_stage"]
    rate = found["instances"] / sum(
        seconds for stage, seconds in stages.items() if stage != "start"
    )
    return found | {"instances_per_cpu_second": round(rate), "writes": "write" in stages}


def main() -> int:
    """Runs the build several times and prints medians and spread."""
    parser = make_parser(__doc__, epilog="Other arguments go to `python -m pipeline build`.")
    parser.add_argument("--input", nargs="+", required=True)
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[1])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--copies", type=int, help="write the corpus that many times and build from that"
    )
    parser.add_argument(
        "--reference_python",
        help="interpreter for the reference's program, best one with TensorFlow",
    )
    parser.add_argument("--reference_megabytes", type=float, default=3.0)
    own, rest = parser.parse_known_args()
    rest = ["--vocab", own.vocab, "--passes", str(own.passes), *rest]
    reference = None
    with tempfile.TemporaryDirectory(prefix="beambert-bench-") as folder:
        source = [write_copies(own.input, own.copies, Path(folder))] if own.copies else own.input
        runs: dict[int, list[dict[str, Any]]] = {workers: [] for workers in own.workers}
        for _ in range(own.repeat):
            for workers, found in runs.items():
                found.append(measure_build(["--input", *source, *rest, "--workers", str(workers)]))
    if own.reference_python:
        arguments = own.reference_python, own.input, own.vocab, own.passes, own.reference_megabytes
        reference = measure_reference(*arguments)
    roots = {run["root_hash"] for found in runs.values() for run in found}
    assert len(roots) == 1, f"root hashes differ: {roots}"
    rates = {
        n: summarize([run["instances_per_cpu_second"] for run in found], 0)
        for n, found in runs.items()
    }
    first = rates[own.workers[0]]["median"]
    config = ["--input", *own.input, "--copies", str(own.copies or 0), *rest]
    print_result(
        "build",
        config,
        ("apache-beam", "pyarrow", "numpy", "tokenizers"),
        instances_per_cpu_second=rates,
        times_as_fast=compare_workers(runs),
        times_the_reference=reference and round(first / reference["instances_per_cpu_second"], 1),
        reference=reference,
        runs=runs,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
