"""Forgets documents of tiny runs: each must end as the run that never had them, to the bit.

    python -m scripts.soak.forgetting --output forgetting.json

Every scenario trains a run, then forgets random documents of it several times. Each new run is
compared with one that was started with `--leave_out` from the beginning: all files of the last
checkpoint must have the same bytes. If no step read the documents, the run itself must have the
weights of that one. The certificate of each new run must be good. Prints one JSON line for each
forgetting.
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from scripts.checkout import ROOT, describe_soak, make_parser, write_results
from tests.ports import free_port
from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import TINY

SHORT = {"seq_len": 16, "global_batch": 12, "steps": 8, "peak_lr": 0.02, "warmup_steps": 2}
LONG = {"seq_len": 32, "global_batch": 9, "steps": 5, "peak_lr": 0.01}
NUM_DOCUMENTS = 120
INSTANCES = 160


@dataclass(frozen=True)
class Scenario:
    """A run to forget documents of.

    Attributes:
        optimizer: The optimizer.
        zero_stage: The stage of ZeRO.
        world_size: Number of ranks.
        phases: The phases.
        data: Names of the datasets, with their weights.
        others: Further settings.
    """

    optimizer: str
    zero_stage: int
    world_size: int
    phases: tuple[dict[str, Any], ...] = (SHORT,)
    data: tuple[str, ...] = ("a",)
    others: dict[str, Any] = field(default_factory=dict)


SCENARIOS = (
    Scenario("adamw", 0, 1),
    Scenario("adamw", 1, 2, (SHORT, LONG)),
    Scenario("adamw", 2, 3, data=("a:2", "b:1")),
    Scenario("lamb", 0, 2, (SHORT, SHORT | {"global_batch": 15, "optimizer_state": "reset"})),
    Scenario("lamb", 1, 3, (LONG, SHORT), others={"masking": "0.3-0.15"}),
    Scenario("lamb", 2, 1, (SHORT, LONG, SHORT), ("a:1", "b:3")),
    Scenario("muon", 0, 3, others={"masking": "0.15"}),
    Scenario("muon", 1, 1, (SHORT, LONG), others={"skip": ["0:30-41"]}),
    Scenario("muon", 2, 2, (LONG, LONG), ("a", "b"), {"masking": "0.2"}),
    Scenario("adamw", 1, 3, (SHORT | {"steps": 40},), others={"objective": "mlm"}),
)


def main() -> int:
    """Forgets documents of every scenario; exit code 1 if a new run differs."""
    parser = make_parser(__doc__)
    parser.add_argument("--forgettings", type=int, default=3, help="forgettings of each scenario")
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        return work(given.work)
    results = []
    with tempfile.TemporaryDirectory(prefix="beambert-forget-") as folder:
        for number, scenario in enumerate(SCENARIOS):
            place = Path(folder) / str(number)
            for result in forget_often(scenario, place, given.forgettings, number):
                print(json.dumps(result), flush=True)
                results.append(result)
    is_sound = all(result["is_equal"] for result in results)
    if given.output:
        result = describe_soak("forgetting") | {"is_sound": is_sound}
        write_results(given.output, result, "forgettings", results)
    return 0 if is_sound else 1


def forget_often(scenario: Scenario, folder: Path, num_times: int, seed: int) -> Iterator[Any]:
    """Yields what came of each forgetting of random documents of one run.

    Args:
        scenario: The run.
        folder: An empty folder for datasets and runs, which is made.
        num_times: How often to forget.
        seed: Decides about the documents.
    """
    folder.mkdir(parents=True)
    for name in ("a", "b"):
        write_tiny_dataset(folder / name, (16, 32), INSTANCES, seed=ord(name))
    drawn = random.Random(seed)
    lists = []
    for number in range(num_times):
        chosen = drawn.sample(range(NUM_DOCUMENTS), drawn.randint(1, 3))
        lists.append(folder / f"list-{number}")
        lists[-1].write_text("".join(f"{document:016x}\n" for document in chosen))
    commands = [_pretrain(scenario, folder, "run")]
    for number, documents in enumerate(lists):
        output = str(folder / f"new-{number}")
        forget = ["forget", str(folder / "run"), "--documents", str(documents)]
        cache = ["--cache_dir", str(folder / "cache")]
        commands += [
            [*forget, "--output", output, *cache],
            ["ask", output, "--certificate", f"{output}/certificate.json", *cache],
            _pretrain(scenario, folder, f"whole-{number}", leave_out=str(documents)),
        ]
    run_commands(commands, folder, scenario.world_size)
    for number, documents in enumerate(lists):
        new = folder / f"new-{number}"
        whole = folder / f"whole-{number}"
        forgot = {}
        if new.exists():
            forgot = json.loads((new / "run.json").read_text())["forgot"]
        yield {
            **asdict(scenario),
            "documents": documents.read_text().split(),
            "first_step": forgot.get("first_step"),
            "from_checkpoint": forgot.get("from_checkpoint"),
            "is_equal": _are_equal(new if forgot else folder / "run", whole, not forgot),
        }


def _pretrain(scenario: Scenario, folder: Path, name: str, **changed: Any) -> list[str]:
    """Returns the arguments that train a run of a scenario."""
    config = {
        "data": [f"{folder}/{entry}" for entry in scenario.data],
        "output": str(folder / name),
        "phases": list(scenario.phases),
        "model": {"preset": "tiny", "overrides": TINY},
        "optimizer": {"name": scenario.optimizer},
        "zero_stage": scenario.zero_stage,
        "micro_tokens": 64,
        "seed": 11,
        "checkpoint": {"interval": 2, "keep": 0},
        "validation": {"interval": 0},
        "cache_dir": str(folder / "cache"),
        **scenario.others,
        **changed,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return ["pretrain", "--config", str(path)]


def run_commands(commands: Sequence[Sequence[str]], folder: Path, world_size: int) -> None:
    """Runs commands of the trainer one after another, in one process for each rank.

    Raises:
        RuntimeError: A command failed.
    """
    work_file = folder / "work.json"
    work_file.write_text(json.dumps([[free_port(), *command] for command in commands]))
    program = [sys.executable, "-m", "scripts.soak.forgetting", "--work", str(work_file)]
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in range(world_size):
            place = {"MASTER_ADDR": "127.0.0.1", "RANK": rank, "LOCAL_RANK": rank}
            place |= {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
            variables = {name: str(value) for name, value in place.items()}
            variables["OMP_NUM_THREADS"] = "1"
            log = stack.enter_context((folder / f"rank-{rank}.log").open("wb"))
            ranks.append(
                subprocess.Popen(
                    program, env={**os.environ, **variables}, cwd=ROOT, stdout=log, stderr=log
                )
            )
        codes = [rank.wait() for rank in ranks]
    if any(codes):
        said = (folder / "rank-0.log").read_text()
        raise RuntimeError(f"a command failed, codes {codes}:\n{said[-3000:]}")


def work(work_file: Path) -> int:
    """Runs the commands of a file as one rank; returns the first code that is not 0.

    A run is not asked if it is not there, because there was nothing to forget.
    """
    from trainer.cli import main as run

    for port, *command in json.loads(work_file.read_text()):
        if command[0] == "ask" and not Path(command[1]).exists():
            continue
        os.environ["MASTER_PORT"] = str(port)
        code = run(command)
        if code:
            return code
    return 0


def _are_equal(run: Path, whole: Path, weights_only: bool) -> bool:
    """Returns whether two runs ended in the same checkpoint.

    Args:
        run: One run.
        whole: The other one.
        weights_only: Whether to leave out the files that say which documents were left out.
    """
    last = max((whole / "checkpoints").glob("step-*"))
    names = [file.name for file in last.iterdir()]
    if weights_only:
        names = [name for name in names if name.endswith(".safetensors")]
    other = run / "checkpoints" / last.name
    return all((last / name).read_bytes() == (other / name).read_bytes() for name in names)


if __name__ == "__main__":
    sys.exit(main())
