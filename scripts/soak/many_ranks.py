"""Starts many real ranks on one machine before a store that throttles: what each node asked for, second by second.

    python -m scripts.soak.many_ranks --nodes 8 --ranks 8 --per_second 60 --output
    scripts/soak/results/NAME.json

The store is a server on 127.0.0.1 that answers 503 above a number of requests a second. Ranks open
the data together as `pretrain` does, and read some steps through a cache for each node. Their
batches must be those of one reader, every table must be read once, and no node may read anything
twice. Prints one JSON line.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path
from typing import Any

from scripts.checkout import commit

GLOBAL_BATCH, NUM_STEPS = 256, 12


def start_ranks_on(folder: Path, nodes: int, ranks: int, per_second: int) -> dict[str, Any]:
    """Runs all ranks and says what came of it."""
    from pipeline.shards.dataset import open_dataset
    from tests.conftest import _make_dataset
    from tests.trainer.http_store import serving
    from tests.trainer.stream_rank import read_steps
    from tests.trainer.two_ranks import run_nodes
    from trainer.reading.settings import Reading

    data = _make_dataset(folder / "data", ((900,) * 8,))
    caches = [folder / f"node-{number}" for number in range(nodes)]
    with serving(data) as store:
        store.per_second = per_second
        words = [
            "-m",
            "tests.trainer.stream_rank",
            store.url,
            ",".join(map(str, caches)),
            ranks,
            GLOBAL_BATCH,
        ]
        began = time.monotonic()
        ended = run_nodes([([*map(str, words), str(NUM_STEPS)], ranks)] * nodes, timeout=1800)
        seconds = time.monotonic() - began
    findings = [
        f"rank {rank}: {each.stderr[-300:]}" for rank, each in enumerate(ended) if each.returncode
    ]
    if not findings:
        found = [json.loads(each.stdout.splitlines()[-1]) for each in ended]
        alone = read_steps(open_dataset(str(data)), 0, 1, GLOBAL_BATCH, NUM_STEPS, Reading())
        if [list(chain.from_iterable(shares)) for shares in zip(*found, strict=True)] != alone:
            findings.append("the batches are not those of one reader")
    tables = {
        name: store.count(name) for name in ("manifest.json", "shards.parquet", "blocks.parquet")
    }
    findings += [f"{name} was read {times} times" for name, times in tables.items() if times != 1]
    kept = sum(len([*(cache / "stretches").iterdir()]) for cache in caches)
    if store.count(".tar") != kept:
        findings.append(f"{store.count('.tar')} stretches were answered, and {kept} kept")
    return {
        "ranks": nodes * ranks,
        "nodes": nodes,
        "per_second": per_second,
        "seconds": round(seconds, 1),
        "stretches": kept,
        "refused": store.refused,
        "asked_by_second": [store.asked[second] for second in range(max(store.asked) + 1)],
        "tables": tables,
        "findings": findings,
    }


def main() -> int:
    """Runs the ranks; exit code 1 where something was not as it should be."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=8, help="of each node")
    parser.add_argument(
        "--per_second", type=int, default=60, help="requests that the store answers in a second"
    )
    parser.add_argument("--output", type=Path, help="JSON file for the result")
    own = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="beambert-many-ranks-") as folder:
        found = start_ranks_on(Path(folder), own.nodes, own.ranks, own.per_second)
    result = {
        "program": "many_ranks",
        "commit": commit(),
        "cores": len(os.sched_getaffinity(0)),
        **found,
    }
    print(json.dumps(result))
    if own.output:
        own.output.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if result["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
