"""What the soaks share that kill: seeds, sessions of processes, a corpus. Linux only."""

import contextlib
import json
import os
import random
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from scripts.checkout import write_results

_TEXT = "river mountain engine letter window garden silver winter market captain"
WORDS = _TEXT.split()


class Soak(Protocol):
    """Kills as a seed draws, compares the end with an undisturbed run; outcomes are dataclasses."""

    def run_seed(self, seed: int) -> Any: ...  # noqa: D102

    def summarize(self, outcomes: Sequence[Any]) -> dict[str, Any]: ...  # noqa: D102


def run_seeds(soak: Soak, first: int, count: int, output: Path | None) -> int:
    """Runs seeds, fewer where it is interrupted; prints a JSON line for each and one for all.

    Returns the exit code: 1 where "failed_seeds" of the summary are any.
    """
    outcomes: list[Any] = []
    with contextlib.suppress(KeyboardInterrupt):
        for seed in range(first, first + count):
            outcomes.append(soak.run_seed(seed))
            print(json.dumps(asdict(outcomes[-1])), flush=True)
            rows = [asdict(each) for each in outcomes]
            write_results(output, soak.summarize(outcomes), "outcomes", rows)
    result = soak.summarize(outcomes)
    print(json.dumps(result))
    return 1 if result["failed_seeds"] else 0


def session_processes(session: int) -> Iterator[int]:
    """Yields the living processes of a session, such as all those of a build that began it."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            yield int(path.parent.name)


def send_kill(pid: int) -> None:
    """Sends SIGKILL to a process, if it still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_session(session: int) -> None:
    """Sends SIGKILL to every process of a session."""
    for pid in list(session_processes(session)):
        send_kill(pid)


def write_corpus(folder: Path, documents: int) -> None:
    """Writes made-up documents to four files.

    No two are equal, but every fifth is like the one before.
    """
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
