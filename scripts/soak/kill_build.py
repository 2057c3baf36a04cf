"""Kills builds at random moments, runs them again: nothing may be lost, redone or left behind.

    python -m scripts.soak.kill_build --kills 50

Each seed draws the moment and the victim: the launcher, one worker, or every process of the build.
After the last kill the same command runs to its end. It must give the root hash and the files of a
build that was never disturbed, and files that were finished at a kill must be the very same files
in the end. Prints one JSON line a kill; --output names a file for all of them. Linux only:
processes are found in /proc.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.checkout import ROOT, describe_soak, make_parser
from scripts.soak.kills import kill_session, run_seeds, session_processes, write_corpus

DEADLINE_SECONDS = 300.0
POLL_SECONDS = 0.005
STAGES = ("start", "vocabulary", "tokens", "near-duplicates", "shards", "report")
VICTIMS = ("all", "launcher", "worker")


@dataclass(frozen=True)
class Outcome:
    """What one seeded kill, or a row of them, came to."""

    seed: int
    kills: list[str]  # victim, seconds after the start and stage of each that hit
    runs: int
    kept: int  # files that were finished at a kill
    seconds: float
    findings: list[str]


def main() -> int:
    """Runs the seeds; exit code 1 where one found something wrong."""
    parser = make_parser(__doc__)
    parser.add_argument("--kills", type=int, default=50, help="seeds to run")
    parser.add_argument("--first_seed", type=int, default=0)
    parser.add_argument("--documents", type=int, default=600, help="size of the made-up corpus")
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    own = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="beambert-kill-") as folder:
        return run_seeds(Soak(Path(folder), own.documents), own.first_seed, own.kills, own.output)


def count_findings(outcomes: Sequence[Outcome], kind: str) -> int:
    """Findings of one kind in all outcomes."""
    return sum(each.startswith(kind) for outcome in outcomes for each in outcome.findings)


class Soak:
    """A small corpus, its undisturbed build, and disturbed ones to compare with it."""

    def __init__(self, folder: Path, documents: int) -> None:
        self.folder = folder
        self.documents = documents
        write_corpus(folder, documents)
        began = time.monotonic()
        self._finish(folder / "undisturbed")
        self.undisturbed_seconds = time.monotonic() - began
        self.root_hash = read_root_hash(folder / "undisturbed")
        self.files = list_names(folder / "undisturbed")

    def run_seed(self, seed: int) -> Outcome:
        """Kills a build one to three times, and then lets it run to the end."""
        draws = random.Random(seed)
        count = draws.choice((1, 1, 2, 3))
        kills = (
            (draws.uniform(0, self.undisturbed_seconds), draws.choice(VICTIMS))
            for _ in range(count)
        )
        return self.run_kills(kills, draws, seed)

    def run_kills(
        self, kills: Iterable[tuple[float | str, str]], draws: random.Random, seed: int = 0
    ) -> Outcome:
        """Kills at seconds after a start, or as a stage begins, then a run to the end."""
        output = self.folder / f"seed-{seed}"
        began = time.monotonic()
        runs = 0
        hits: list[str] = []
        kept: dict[str, tuple[int, int]] = {}
        for moment, victim in kills:
            runs += 1
            hit = self._run_and_kill(output, moment, victim, draws)
            if hit:
                hits.append(f"{hit} in {stage_of(output)}")
            kept |= finished_files(output)
        self._finish(output)
        findings = self._compare(output, kept)
        return Outcome(
            seed, hits, runs + 1, len(kept), round(time.monotonic() - began, 1), findings
        )

    def summarize(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        """Returns the sums and findings of all seeds."""
        kills = [each for outcome in outcomes for each in outcome.kills]
        return {
            **describe_soak("kill_build"),
            "documents": self.documents,
            "undisturbed_seconds": round(self.undisturbed_seconds, 1),
            "root_hash": self.root_hash,
            "seeds": len(outcomes),
            "kills": len(kills),
            "kills_by_stage": dict(Counter(each.rpartition(" in ")[2] for each in kills)),
            "kills_by_victim": dict(
                Counter(next(name for name in VICTIMS if name in each) for each in kills)
            ),
            "hung_after_a_kill": sum(", hung" in each for each in kills),
            "root_hashes_equal": sum(
                not any("root hash" in each for each in outcome.findings) for outcome in outcomes
            ),
            "kept_files": sum(outcome.kept for outcome in outcomes),
            "finished_files_redone": count_findings(outcomes, "redone"),
            "left_behind": count_findings(outcomes, "left behind"),
            "missing": count_findings(outcomes, "missing"),
            "failed_seeds": [outcome.seed for outcome in outcomes if outcome.findings],
        }

    def _compare(self, output: Path, kept: dict[str, tuple[int, int]]) -> list[str]:
        findings = []
        if (found := read_root_hash(output)) != self.root_hash:
            findings.append(f"root hash {found}, undisturbed {self.root_hash}")
        names = list_names(output)
        findings += [f"left behind: {name}" for name in sorted(names - self.files)]
        findings += [f"missing: {name}" for name in sorted(self.files - names)]
        return findings + [
            f"redone: {name}"
            for name, was in sorted(kept.items())
            if identity(output / name) != was
        ]

    def _command(self, output: Path) -> list[str]:
        flags = "--passes 4 --seq_lens 64 --num_buckets 4 --part_bytes 20000 --near_duplicates 0.8"
        # The vocabulary is learned, so that kills hit this stage too.
        given = f"--output {output} --input {self.folder / 'corpus'} --vocab_size 100 --workers 2"
        return [sys.executable, "-m", "pipeline", "build", *flags.split(), *given.split()]

    def _start(self, output: Path) -> "subprocess.Popen[bytes]":
        with Path(self.folder, "log.txt").open("wb") as log:
            return subprocess.Popen(
                self._command(output),
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _finish(self, output: Path) -> None:
        process = self._start(output)
        try:
            code = process.wait(DEADLINE_SECONDS)
        finally:
            kill_session(process.pid)
        if code:
            said = Path(self.folder, "log.txt").read_text(errors="replace")[-3000:]
            raise RuntimeError(f"the build of {output} ended with exit code {code}:\n{said}")

    def _run_and_kill(
        self, output: Path, moment: float | str, victim: str, draws: random.Random
    ) -> str | None:
        """Starts the build and kills; says whom and when, or None where it was over before."""
        began = time.monotonic()
        process = self._start(output)
        try:
            while not has_come(output, moment, time.monotonic() - began):
                if process.poll() is not None:
                    return None
                time.sleep(POLL_SECONDS)
            hit = f"{kill(process, victim, draws)} at {time.monotonic() - began:.1f} s"
            # A build that lost a worker may end, go on or hang: what is left of it is killed too.
            try:
                process.wait(3 * self.undisturbed_seconds)
            except subprocess.TimeoutExpired:
                hit += ", hung"
            return hit
        finally:
            if (
                victim != "launcher"
            ):  # orphaned workers may still be there while the next run begins
                kill_session(process.pid)


def has_come(output: Path, moment: float | str, seconds: float) -> bool:
    """Returns whether the moment for a kill has come.

    Args:
        output: The output of the build.
        moment: Seconds since the start, or the stage that the build must have reached.
        seconds: The seconds since the start.
    """
    if isinstance(moment, str):
        return STAGES.index(stage_of(output)) >= STAGES.index(moment)
    return seconds >= moment


def kill(process: "subprocess.Popen[bytes]", victim: str, draws: random.Random) -> str:
    """Sends SIGKILL; where there are no workers yet, the launcher is the victim."""
    workers = sorted(set(session_processes(process.pid)) - {process.pid})
    if victim == "all":
        kill_session(process.pid)
        return f"all {1 + len(workers)} processes"
    if victim == "worker" and workers:
        with contextlib.suppress(ProcessLookupError):  # it may have ended meanwhile
            os.kill(draws.choice(workers), signal.SIGKILL)
            return f"1 of {len(workers)} workers"
    os.kill(process.pid, signal.SIGKILL)
    return f"launcher of {len(workers)} workers"


def finished_files(output: Path) -> dict[str, tuple[int, int]]:
    """Returns the identities of files whose tasks are recorded as finished, by their names."""
    found = (
        ["vocab.txt", "tokenizer.json", "word_counts.parquet"]
        if (output / "vocab.json").exists()
        else []
    )
    records = output.glob("_tasks/**/*.tar.json")
    found += [
        str(record.relative_to(output / "_tasks")).removesuffix(".json") for record in records
    ]
    if (output / "manifest.json").exists():
        found += [str(path.relative_to(output)) for path in output.rglob("shard-*.tar")]
    for record in output.glob("tokens/*-last.json"):
        stem = record.name.removesuffix("-last.json")
        found += [f"tokens/{record.name}", f"tokens/{stem}.tokens", f"tokens/{stem}.index"]
    return {name: identity(output / name) for name in found}


def identity(path: Path) -> tuple[int, int]:
    """Returns the time of writing and the inode of a file, which change if it is written again."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_mtime_ns, found.st_ino


def list_names(output: Path) -> set[str]:
    """Returns the names of all files below a folder."""
    return {str(path.relative_to(output)) for path in output.rglob("*") if path.is_file()}


def read_root_hash(output: Path) -> str:
    """Returns the root hash in the manifest."""
    return str(json.loads((output / "manifest.json").read_bytes())["root_hash"])


def stage_of(output: Path) -> str:
    """Returns the stage that a build had reached when it was killed."""
    marks = {
        "report": "manifest.json",
        "shards": "_tasks",
        "near-duplicates": "tokens/near_duplicates",
    }
    marks |= {"tokens": "vocab.json", "vocabulary": "_words"}
    return next((stage for stage, mark in marks.items() if (output / mark).exists()), "start")


if __name__ == "__main__":
    sys.exit(main())
