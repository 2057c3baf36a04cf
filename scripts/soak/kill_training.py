"""Kills training at random moments under `scripts/supervise`: the end must be the same, to the bit.

    python -m scripts.soak.kill_training --runs 20

Each seed draws one or two accidents, and for each the moment (a step, or a time while the ranks
start) and the victim: a rank, the launcher, the `deepspeed` command, or the node with all of them
and its disk, so that only the checkpoint URL is left. In the end every file of the last checkpoint
(weights, moments, position) must be the same as without accidents, here and at the URL, and the
metrics must hold every step once, with every instance in its place. Prints one JSON line a seed;
--output names a file for all of them. Linux only.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.checkout import ROOT, describe_soak, make_parser
from scripts.soak.kills import kill_session, run_seeds, send_kill, session_processes, write_corpus
from tests.ports import free_port

DEADLINE_SECONDS = 900.0
START_SECONDS = 15.0
POLL_SECONDS = 0.005
VICTIMS = ("rank", "rank", "launcher", "command", "node")
TIMES = (
    *("tokens_per_second", "data_wait_share", "model_tflops_per_rank", "mfu"),
    *("peak_memory_bytes", "eta_seconds", "seconds"),
)
CONFIG = {
    "model": {
        "preset": "tiny",
        "overrides": {"num_layers": 2, "hidden_size": 64, "max_position_embeddings": 64},
    },
    "validation": {"interval": 50},
    "micro_tokens": 256,
    "seed": 5,
}


@dataclass(frozen=True)
class Outcome:
    """What one seed came to."""

    seed: int
    kills: list[str]  # victim and steps logged at each that hit
    restarts: int
    repeated_steps: int  # because the checkpoint before the kill was older
    seconds: float
    findings: list[str]


def main() -> int:
    """Runs the seeds; exit code 1 where one found something wrong."""
    parser = make_parser(__doc__)
    parser.add_argument("--runs", type=int, default=20, help="seeds to run")
    parser.add_argument("--first_seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    own = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="beambert-kill-") as folder:
        return run_seeds(Soak(Path(folder), own.steps), own.first_seed, own.runs, own.output)


class Soak:
    """A small dataset, an undisturbed run on two ranks, and disturbed ones to compare with it."""

    def __init__(self, folder: Path, steps: int) -> None:
        """Builds the dataset and makes the undisturbed run."""
        self.folder = folder
        self.steps = steps
        write_corpus(folder, 400)
        build = f"build --input {folder}/corpus --output {folder}/data --vocab_size 100"
        build += " --passes 2 --seq_lens 64 --workers 1"
        subprocess.run(
            [sys.executable, "-m", "pipeline", *build.split()],
            cwd=ROOT,
            check=True,
            stderr=subprocess.DEVNULL,
        )
        began = time.monotonic()
        job = Job(folder, "undisturbed", steps)
        job.finish()
        self.undisturbed_seconds = time.monotonic() - began
        self.rows = job.rows()
        self.marker = job.marker(job.run)

    def run_seed(self, seed: int) -> Outcome:
        """Runs a training with one or two accidents, until the supervisor ends."""
        draws = random.Random(seed)
        return self.run_accidents(_draw_accidents(draws), draws, seed)

    def run_accidents(
        self,
        accidents: Iterable[tuple[str, float | None, float]],
        draws: random.Random,
        seed: int = 0,
    ) -> Outcome:
        """Runs a training with these accidents, until the supervisor ends.

        Args:
            accidents: For each accident its victim; the share of the remaining steps that are made
                before it; and, if the share is None, the seconds from the start.
            draws: Draws the process that is killed.
            seed: The seed, which names the run.
        """
        began = time.monotonic()
        job = Job(self.folder, f"seed-{seed}", self.steps)
        kills: list[str] = []
        furthest = repeated = 0
        try:
            for victim, share, seconds in accidents:
                step = None if share is None else furthest + int(share * (self.steps - furthest))
                at = job.wait_for(step, seconds)
                if at is None:
                    break
                kills += [f"{hit} at step {at}"] if (hit := job.kill(victim, draws)) else []
                furthest = max(furthest, at)
                repeated += at - job.newest_step()
            findings = job.finish()
        finally:
            job.end()
        findings += self._compare(job)
        shutil.rmtree(job.run, ignore_errors=True)
        return Outcome(
            seed, kills, job.restarts(), repeated, round(time.monotonic() - began, 1), findings
        )

    def summarize(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        """Returns the sums and findings of all seeds."""
        kills = [each for outcome in outcomes for each in outcome.kills]
        return {
            **describe_soak("kill_training"),
            "ranks": 2,
            "steps": self.steps,
            "undisturbed_seconds": round(self.undisturbed_seconds, 1),
            "seeds": len(outcomes),
            "kills": len(kills),
            "kills_by_victim": dict(
                Counter(next(name for name in VICTIMS if each.startswith(name)) for each in kills)
            ),
            "restarts": sum(outcome.restarts for outcome in outcomes),
            "bitwise_equal": sum(
                not any("differs" in each for each in outcome.findings) for outcome in outcomes
            ),
            "failed_seeds": [outcome.seed for outcome in outcomes if outcome.findings],
        }

    def _compare(self, job: "Job") -> list[str]:
        findings = []
        for where in (job.run, job.url):
            if (found := job.marker(where)) != self.marker:
                names = [name for name, facts in self.marker.items() if found.get(name) != facts]
                findings.append(f"{where.name}: the last checkpoint differs in {names}")
        rows = job.rows()
        if [row["step"] for row in rows] != list(range(1, self.steps + 1)):
            findings.append(
                f"the metrics do not hold every step once: {[row['step'] for row in rows]}"
            )
        position = 0
        for row in rows:
            if row["position"] != position:
                findings.append(
                    f"step {row['step']} begins at instance {row['position']}, not at {position}"
                )
                break
            position += row["instances"]
        if rows != self.rows:
            findings.append("the rows of the metrics differ")
        return findings


def _draw_accidents(draws: random.Random) -> Iterator[tuple[str, float | None, float]]:
    for _ in range(draws.choice((1, 1, 2))):
        victim = draws.choice(VICTIMS)
        share = draws.random()
        seconds = draws.uniform(0, START_SECONDS)
        yield victim, share if draws.random() < 0.8 else None, seconds


class Job:
    """The command under its supervisor, in a session of its own."""

    def __init__(self, folder: Path, name: str, steps: int) -> None:
        """Starts it on FOLDER/data."""
        self.run = folder / name
        self.url = folder / f"{name}-url"
        self._log = folder / f"{name}.log"
        phase = {
            "seq_len": 64,
            "global_batch": 12,
            "steps": steps,
            "peak_lr": 0.001,
            "warmup_steps": 5,
        }
        saving = {"interval": 7, "keep": 2, "url": f"file://{self.url}"}
        config = {**CONFIG, "phases": [phase], "checkpoint": saving}
        path = folder / f"{name}.json"
        path.write_text(
            json.dumps({**config, "data": [str(folder / "data")], "output": str(self.run)})
        )
        launcher = [
            str(Path(sys.executable).parent / "deepspeed"),
            "--num_gpus",
            "2",
            "--master_port",
            str(free_port()),
        ]
        command = [*launcher, "--module", "trainer", "pretrain", "--config", str(path)]
        supervisor = [sys.executable, str(ROOT / "scripts/supervise"), "--pause_seconds", "2"]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*supervisor, *command],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_for(self, step: int | None, seconds: float) -> int | None:
        """Waits for a step, or for so many seconds; the last step then, None at the end."""
        until = time.monotonic() + (seconds if step is None else DEADLINE_SECONDS)
        while time.monotonic() < until and (step is None or self.last_step() < step):
            if self._process.poll() is not None:
                return None
            time.sleep(POLL_SECONDS)
        return self.last_step()

    def kill(self, victim: str, draws: random.Random) -> str | None:
        """Sends SIGKILL; says whom, None where there was nobody."""
        processes = {
            pid: kind for pid in session_processes(self._process.pid) if (kind := kind_of(pid))
        }
        if victim == "node":
            for pid in processes:
                send_kill(pid)
            while any(kind_of(pid) for pid in processes):
                time.sleep(POLL_SECONDS)
            shutil.rmtree(self.run, ignore_errors=True)
            return f"node of {len(processes)} processes, disk wiped,"
        chosen = sorted(pid for pid, kind in processes.items() if kind == victim)
        if not chosen:
            return None
        send_kill(draws.choice(chosen))
        return f"{victim}, 1 of {len(chosen)},"

    def finish(self) -> list[str]:
        """Waits for the supervisor; what is wrong with its end."""
        try:
            code = self._process.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            return [f"not finished after {DEADLINE_SECONDS:.0f} s: {self.said()}"]
        return [f"exit code {code}: {self.said()}"] if code else []

    def end(self) -> None:
        """Leaves nothing running."""
        kill_session(self._process.pid)
        self._process.wait()

    def said(self) -> str:
        """Returns the end of the log."""
        return self._log.read_text(errors="replace")[-3000:]

    def restarts(self) -> int:
        """Returns how often the supervisor started the command again."""
        return self._log.read_text(errors="replace").count("; restart ")

    def last_step(self) -> int:
        """Returns the newest step in the metrics."""
        return max((row["step"] for row in self.rows()), default=0)

    def newest_step(self) -> int:
        """Returns the step of the newest committed checkpoint, in the folder or at the URL."""
        found = [
            path
            for where in (self.run, self.url)
            for path in where.glob("checkpoints/step-????????/COMMITTED")
        ]
        return max((int(path.parent.name.removeprefix("step-")) for path in found), default=0)

    def rows(self) -> list[dict[str, Any]]:
        """Returns the training rows of the metrics, without the columns that depend on clocks."""
        try:
            lines = (self.run / "metrics.jsonl").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return [
            {key: value for key, value in row.items() if key not in TIMES}
            for row in rows
            if row["split"] == "train"
        ]

    def marker(self, where: Path) -> dict[str, Any]:
        """Sizes and hashes of the last checkpoint's files."""
        markers = sorted(where.glob("checkpoints/step-????????/COMMITTED"))
        return dict(json.loads(markers[-1].read_bytes())["files"]) if markers else {}


def kind_of(pid: int) -> str | None:
    """Returns the kind of a living process of a job: "launcher", "rank" or "command".

    It is None for the supervisor and for every other process.
    """
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return None
    if "deepspeed.launcher.launch" in arguments:
        return "launcher"
    if any(argument.startswith("--local_rank") for argument in arguments):
        return "rank"
    return (
        "command" if any(Path(argument).name == "deepspeed" for argument in arguments[:2]) else None
    )


if __name__ == "__main__":
    sys.exit(main())
