"""A build from a MediaWiki dump to shards, beside what decompressing the dump takes: one JSON line.

    python -m scripts.bench.mediawiki --input enwiki-pages-articles.xml.bz2 --vocab vocab.txt
    --copies 50

The dump is written anew as a multistream .bz2, PAGES_A_STREAM pages a stream, as often as
`--copies` says, each time with other titles and another first word in every article, so that none
is a duplicate. `bzip2 -dc` and builds with one worker and with two take turns. CPU seconds are
those of all processes, and of every stage (scripts/bench/stages.py says what `path_seconds` is). On
cores that share their caches two programs take more of them than one; so what two workers take is
beside what `bzip2 -dc` takes while another one runs.
"""

import argparse
import bz2
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scripts.bench.measured import print_result, summarize
from scripts.bench.stages import STAGES, run_stages

PAGES_A_STREAM = 25
_PAGE = re.compile(rb"  <page>.*?</page>\n", re.DOTALL)
_TITLE = re.compile(rb"<title>")
_TEXT = re.compile(rb"(<text[^>/]*>)(?!#)")


def main() -> int:
    """Writes the dump, decompresses it, builds from it, prints."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--input", required=True)
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--copies", type=int, default=50)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--seq_len", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=3)
    config = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="beambert-bench-") as folder:
        xml = bz2.decompress(Path(config.input).read_bytes())
        dump = Path(folder, "dump-multistream.xml.bz2")
        dump.write_bytes(b"".join(write_streams(xml, config.copies)))
        flags = [
            "--vocab",
            config.vocab,
            "--passes",
            str(config.passes),
            "--seq_lens",
            str(config.seq_len),
        ]
        decompressing: dict[int, list[float]] = {1: [], 2: []}
        runs: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
        for _ in range(config.repeat):
            for workers, found in runs.items():
                decompressing[workers].append(decompress(dump, workers))
                found.append(measure_build(dump, [*flags, "--workers", str(workers)]))
        size = dump.stat().st_size
    roots = {run["root_hash"] for found in runs.values() for run in found}
    assert len(roots) == 1, f"root hashes differ: {roots}"
    alone = {workers: summarize(seconds) for workers, seconds in decompressing.items()}
    print_result(
        "mediawiki",
        vars(config),
        ("apache-beam", "numpy"),
        xml_bytes=config.copies * len(xml),
        stored_bytes=size,
        bzip2_cpu_seconds=alone,
        builds={workers: summarize_builds(found) for workers, found in runs.items()},
        times_bzip2={
            workers: round(
                summarize([run["cpu_seconds"] for run in found])["median"]
                / alone[workers]["median"],
                2,
            )
            for workers, found in runs.items()
        },
        root_hash=roots.pop(),
    )
    return 0


def write_streams(xml: bytes, copies: int) -> Iterator[bytes]:
    """The dump's head, its pages so many times, and its end, each in bzip2 streams of their own."""
    pages = _PAGE.findall(xml)
    first, last = xml.index(pages[0]), xml.rindex(b"</page>\n") + len(b"</page>\n")
    yield bz2.compress(xml[:first])
    for copy in range(copies):
        changed = [_change(page, b"x%d " % copy) for page in pages]
        for start in range(0, len(changed), PAGES_A_STREAM):
            yield bz2.compress(b"".join(changed[start : start + PAGES_A_STREAM]))
    yield bz2.compress(xml[last:])


def children_cpu_seconds(function: Callable[[], object]) -> float:
    """CPU seconds of the processes that a call starts and waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    function()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def decompress(dump: Path, times: int) -> float:
    """CPU seconds of one of so many `bzip2 -dc` that run at once."""

    def run() -> None:
        commands = [
            subprocess.Popen(["bzip2", "-dc", str(dump)], stdout=subprocess.DEVNULL)
            for _ in range(times)
        ]
        codes = [command.wait() for command in commands]
        assert not any(codes), f"bzip2 failed on {dump}"

    return children_cpu_seconds(run) / times


def measure_build(dump: Path, flags: list[str]) -> dict[str, Any]:
    """What a build and its stages take, in processes of their own."""
    with tempfile.TemporaryDirectory(dir=dump.parent) as output:
        data = Path(output, "data")
        command = [
            sys.executable,
            "-m",
            "pipeline",
            "build",
            "--input",
            str(dump),
            "--output",
            str(data),
            *flags,
        ]
        load = os.getloadavg()[0]
        found: list[Any] = []
        seconds = children_cpu_seconds(lambda: found.append(run_stages(command, data)))
        manifest = json.loads((data / "manifest.json").read_text())
    (run,) = found
    measured = {
        "load": load,
        "root_hash": manifest["root_hash"],
        "seconds": run.seconds,
        "peak_bytes": run.peak_bytes,
    }
    return measured | {"cpu_seconds": seconds, "stages": run.stages}


def summarize_builds(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians and spreads of several builds, and of the CPU seconds of their stages."""
    found: dict[str, Any] = {
        name: summarize([run[name] for run in runs])
        for name in ("load", "seconds", "cpu_seconds", "peak_bytes")
    }
    for stage in [*STAGES, "report"]:
        found[f"{stage}_cpu_seconds"] = summarize(
            [run["stages"][stage]["cpu_seconds"] for run in runs]
        )
    return found


def _change(page: bytes, word: bytes) -> bytes:
    return _TEXT.sub(lambda found: found[1] + word, _TITLE.sub(lambda found: found[0] + word, page))


if __name__ == "__main__":
    sys.exit(main())
