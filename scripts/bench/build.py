"""Instances per CPU-second of a whole build, text to finished shards, everything in: one JSON line.

    python scripts/bench/build.py --input 'wiki/*.zst' --vocab vocab.txt --workers 1 --passes 5

CPU seconds are those of every process of the build, start-up of Python and Beam included.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np


def measure_build(arguments: list[str]) -> dict[str, float]:
    """Runs one build in a process of its own and measures it."""
    with tempfile.TemporaryDirectory(prefix="beambert-bench-") as folder:
        output = Path(folder, "data")
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [sys.executable, "-m", "pipeline", "build", "--output", str(output), *arguments]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        manifest = json.loads(Path(output, "manifest.json").read_text())
    cpu = (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)
    instances = sum(group["instances"] for group in manifest["groups"])
    return {
        "instances": instances,
        "corpus_bytes": manifest["counters"]["cleaned_bytes"],
        "corpus_tokens": manifest["counters"]["distinct_tokens"],
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "instances_per_cpu_second": round(instances / cpu),
        "corpus_tokens_per_cpu_second": round(manifest["counters"]["distinct_tokens"] / cpu),
        "peak_mb_of_largest_process": round(after.ru_maxrss / 1024),
        "root_hash": manifest["root_hash"],
    }


def commit() -> str:
    """The checkout's commit, or an empty string outside one."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip()


def main() -> int:
    """Runs the build several times and prints medians and spread."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3)
    own, rest = parser.parse_known_args()
    runs = [measure_build(rest) for _ in range(own.repeat)]
    rates = [run["instances_per_cpu_second"] for run in runs]
    result = {
        "benchmark": "build",
        "commit": commit(),
        "versions": {name: version(name) for name in ("apache-beam", "pyarrow", "numpy", "tokenizers")},
        "hardware": f"{platform.machine()} {platform.processor()}".strip(),
        "python": platform.python_version(),
        "config": rest,
        "n": own.repeat,
        "median": float(np.median(rates)),
        "spread": [min(rates), max(rates)],
        "runs": runs,
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
