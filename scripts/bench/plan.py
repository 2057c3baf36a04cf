"""CPU-seconds that `build --plan true` predicts beside what the build then takes: one JSON line a corpus.

    python -m scripts.bench.plan --input "wiki/*.zst" --copies 8 --vocab vocab.txt >>
    scripts/bench/results/plan.jsonl

The corpus is written anew as often as `--copies` says, with another first word in every document,
so that none is a
duplicate: a dump (.xml.bz2) as a multistream dump, anything else as JSON Lines. Both numbers are
CPU time, of a fresh process for the plan and of the launcher and all its workers for the build;
neither depends on what else runs, but for the caches and memory that programs share. Plan and build
take turns.
"""

import argparse
import bz2
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.bench.build import measure_build, write_copies
from scripts.bench.measured import print_result, summarize
from scripts.bench.mediawiki import write_streams

_PLAN = """
import json, sys
from pipeline.settings import BuildSettings
from pipeline.stages.build import find_corpus
from pipeline.stages.build_shards import instance_rule
from pipeline.stages.plan import make_plan
settings = BuildSettings(**json.loads(sys.argv[1]))
corpus = find_corpus(settings)
plan = make_plan(settings, corpus.files, corpus.parts, instance_rule)
print(json.dumps({"cpu_seconds": plan.cpu_seconds(settings.workers), "tokens": plan.tokens}))
"""


def write_corpus(patterns: Sequence[str], copies: int, folder: Path) -> str:
    """The input so many times over, as a dump or as JSON Lines; a glob."""
    if not patterns[0].endswith(".xml.bz2"):
        return write_copies(patterns, copies, folder)
    (pattern,) = patterns
    path = folder / "dump-multistream.xml.bz2"
    path.write_bytes(b"".join(write_streams(bz2.decompress(Path(pattern).read_bytes()), copies)))
    return str(path)


def predict(settings: dict[str, Any]) -> dict[str, Any]:
    """What a plan made in a process of its own says."""
    command = [sys.executable, "-c", _PLAN, json.dumps(settings)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def compare(settings: dict[str, Any]) -> dict[str, Any]:
    """One plan and the build of the same settings."""
    flags = [
        f"--{name}={value}"
        for name, value in settings.items()
        if name not in ("input", "output", "seq_lens")
    ]
    lengths = map(str, settings["seq_lens"])
    plan = predict(settings)
    built = measure_build(["--input", *settings["input"], "--seq_lens", *lengths, *flags])
    return {
        "predicted_cpu_seconds": round(plan["cpu_seconds"], 2),
        "measured_cpu_seconds": built["cpu_seconds"],
        "ratio": round(plan["cpu_seconds"] / built["cpu_seconds"], 3),
        "predicted_tokens": plan["tokens"],
        "tokens": built["corpus_tokens"],
        "stages": built["stages"],
        "load": built["load"],
    }


def main() -> int:
    """Writes the corpus, then plans and builds it in turns."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--input", nargs="+", required=True)
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--copies", type=int, default=8)
    parser.add_argument("--seq_lens", type=int, nargs="+", default=[128])
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=2)
    config = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="beambert-bench-") as folder:
        settings = {
            "input": [write_corpus(config.input, config.copies, Path(folder))],
            "output": f"{folder}/data",
            "vocab": config.vocab,
            "seq_lens": config.seq_lens,
            "passes": config.passes,
            "workers": config.workers,
        }
        runs = [compare(settings) for _ in range(config.repeat)]
    print_result(
        "plan",
        vars(config),
        ("apache-beam", "pyarrow", "numpy", "mwparserfromhell"),
        ratio=summarize([run["ratio"] for run in runs], 3),
        runs=runs,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
