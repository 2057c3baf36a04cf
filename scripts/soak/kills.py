"""What the soaks share that kill: seeds and their results, sessions of processes, a corpus. Linux only: reads /proc."""

import contextlib
import json
import os
import random
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

WORDS = [
    "river",
    "mountain",
    "engine",
    "letter",
    "window",
    "garden",
    "silver",
    "winter",
    "market",
    "captain",
]


class Soak(Protocol):
    """What kills as a seed draws, and compares the end with an undisturbed one; outcomes are dataclasses."""

    def run_seed(self, seed: int) -> Any: ...  # noqa: D102

    def summarize(self, outcomes: Sequence[Any]) -> dict[str, Any]: ...  # noqa: D102


def run_seeds(soak: Soak, first: int, count: int, output: Path | None) -> int:
    """Runs seeds, fewer where it is interrupted, and prints a JSON line for each and one for all.

    Args:
        soak: Runs them.
        first: Of the seeds.
        count: How many.
        output: JSON file for all of it, renewed after every seed; None for none.

    Returns:
        Exit code: 1 where "failed_seeds" of the summary are any.
    """
    outcomes: list[Any] = []
    with contextlib.suppress(KeyboardInterrupt):
        for seed in range(first, first + count):
            outcomes.append(soak.run_seed(seed))
            print(json.dumps(asdict(outcomes[-1])), flush=True)
            if output:
                _write_results(output, soak.summarize(outcomes), outcomes)
    result = soak.summarize(outcomes)
    print(json.dumps(result))
    return 1 if result["failed_seeds"] else 0


def session_processes(session: int) -> Iterator[int]:
    """Living processes of a session: a build started in its own session is all of them."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            yield int(path.parent.name)


def kill_session(session: int) -> None:
    """Sends SIGKILL to every process of a session."""
    for pid in list(session_processes(session)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def write_corpus(folder: Path, documents: int) -> None:
    """Documents of made-up sentences in four files, every fifth much like the one before, no two equal."""
    draws = random.Random(0)
    (folder / "corpus").mkdir()
    for number in range(4):
        sentences: list[str] = []
        with (folder / f"corpus/{number}.jsonl").open("w") as file:
            for row in range(documents // 4):
                if row % 5 == 4:
                    sentences = [*sentences, "Letter."]
                else:
                    words = (" ".join(draws.choices(WORDS, k=9)).capitalize() for _ in range(12))
                    sentences = [f"{each} {number} {row}." for each in words]
                file.write(json.dumps({"text": " ".join(sentences)}) + "\n")


def _write_results(path: Path, result: dict[str, Any], outcomes: Sequence[Any]) -> None:
    rows = ",\n".join(json.dumps(asdict(outcome)) for outcome in outcomes)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"result": {json.dumps(result, indent=1)},\n"outcomes": [\n{rows}\n]}}\n')
