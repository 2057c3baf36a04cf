"""What seals cost a build: CPU seconds of everything that counts or compares them, as a share of the build's.

    python -m scripts.bench.seals --input 'text/*.jsonl' --vocab vocab.txt

Builds the input in one process by both exchanges, five passes of one length, and adds up the CPU
time of the calls that seals brought. Not among them are the walk over the index, which
documents.ids needs too (`walk_seconds`, all of it), and an addition for the checksum of each
document.
"""

import argparse
import contextlib
import io
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from pipeline.cli import COMMANDS
from pipeline.command_line.program import run_program
from pipeline.jobs import exchange, shards_job
from pipeline.jobs.shards_job import ShardBuilder
from pipeline.stages import build_shards
from pipeline.tokens.bucket_seals import BucketSums
from scripts.bench.measured import cpu_seconds, print_result

WALK = "_seal_buckets"
TIMED: tuple[tuple[Any, str], ...] = (
    (BucketSums, "add"),
    (BucketSums, "contents"),
    (shards_job, "seal_documents"),
    (shards_job, "refuse_others"),
    (ShardBuilder, "_is_finished"),
    (exchange, "pack_chunk"),
    (exchange, "unpack_chunk"),
    (exchange, "refuse_repeats"),
    (build_shards, WALK),
)


def main() -> None:
    """Builds and prints one JSON line for each exchange."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--input", nargs="+", required=True)
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--passes", default="5")
    options = parser.parse_args()
    for mode in ("files", "shuffle"):
        flags = [
            "--vocab",
            options.vocab,
            "--passes",
            options.passes,
            "--seq_lens",
            "128",
            "--workers",
            "1",
        ]
        with tempfile.TemporaryDirectory(prefix="beambert-seals-") as folder, timed() as seconds:
            words = [
                "build",
                "--input",
                *options.input,
                "--output",
                folder,
                "--exchange",
                mode,
                *flags,
            ]
            whole = cpu_seconds(lambda words=words: _build(words))  # type: ignore[misc]
        found = {name: round(value, 4) for name, value in sorted(seconds.items())}
        walk = found.pop(WALK)
        share = round(sum(found.values()) / whole, 6)
        config = {"exchange": mode, "passes": options.passes, "input": options.input}
        totals = {"build_seconds": round(whole, 2), "walk_seconds": walk, "share": share}
        print_result("seals", config, ["apache-beam"], seconds=found, **totals)


def _build(words: list[str]) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        assert run_program("python -m pipeline", "", COMMANDS, words) == 0, "the build failed"


@contextlib.contextmanager
def timed() -> Iterator[dict[str, float]]:
    """CPU seconds in the functions of TIMED, by their names, added up while the context lasts."""
    seconds: dict[str, float] = defaultdict(float)
    kept = [(owner, name, getattr(owner, name)) for owner, name in TIMED]
    for owner, name, function in kept:
        setattr(owner, name, _timed(function, name, seconds))
    try:
        yield seconds
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


def _timed(
    function: Callable[..., Any], name: str, seconds: dict[str, float]
) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        began = time.thread_time()
        try:
            return function(*arguments)
        finally:
            seconds[name] += time.thread_time() - began

    return call


if __name__ == "__main__":
    main()
