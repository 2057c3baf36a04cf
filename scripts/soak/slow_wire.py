"""Holds what `plan` says of the wire to real runs on two nodes whose link is slow.

    python -m scripts.soak.slow_wire --output scripts/soak/results/DATE-slow-wire-COMMIT.json

The nodes are two network namespaces, and tc limits what each of them sends (`--rate`). Every case
trains a small model whose gradients take longer to send than to compute, first over the unlimited
link, which shows what the machine takes for all else, and then over the slow one. The seconds of a
step are those of metrics.jsonl. Its bytes are what the link counts from the end of the first step
to the end of the last. `load` is the machine's mean number of processes that run or wait for a
core, over the last minute of the case. Prints one JSON line; the exit code is 1 if the seconds of a
case differ by more than 15 % from the plan. Linux and root only; needs iproute2 and the kernel with
tbf. The processes of the nodes, the namespaces and a temporary folder are removed at the end, also
if SIGTERM or SIGINT ends the program.

`alone` tells what the link does without a trainer (wire_alone.py): the share of its rate that plain
sockets and Gloo reach. The plan takes that share to be `RATE_SHARE`. Two things can make it less:

- TCP's congestion control, which `--congestion` chooses. BBR, the default of some machines, leaves
  a link idle that is full in both directions, even between plain sockets. The default here is Reno,
  which every kernel lets a namespace choose.
- Gloo's all-gather. A rank may send as soon as the receiver has said that it is ready, and it says
  so over the connection that its own data take. The rank that begins last sends half of its data
  before it says that it is ready. Until then, the other rank waits.
"""

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from scripts.checkout import ROOT, describe_soak, exit_on_signals, make_parser
from trainer.engine.deepspeed_config import BUCKET_ELEMENTS
from trainer.preflight.communication import (
    add_exchanges,
    count_traffic,
    parse_link,
    time_step,
)

LINK = "bertwire"
ADDRESS = "10.78.0.1"
"""Address of the first node."""
ALONE_BYTES = 7_400_000
"""Bytes that the nodes send to each other where no trainer runs: about the gradients of `MODEL`."""
PORT = 29_513
STEPS = 5
POLL_SECONDS = 0.02
LIMIT_SECONDS = 900
TOLERANCE = 0.15
SEQ_LEN = 16
MODEL = {"num_layers": 2, "hidden_size": 256, "num_heads": 4, "intermediate_size": 1_024}


@dataclass(frozen=True)
class Case:
    """Settings of a run.

    Attributes:
        precision: Number format of the weights.
        zero_stage: ZeRO stage, 0 to 2.
        micro_tokens: The most tokens of a micro-batch.
        global_batch: Instances of a step; each has 8 to 16 tokens.
        bucket_elements: The most elements of a bucket.
        waits_for_weights: Whether every step waits until all its weights have arrived
            (waiting_run.py), to measure what it saves that they travel while the next one begins.
        optimizer: Name of the optimizer, "adamw" or "muon".
        muon_precision: Number format in which Muon orthogonalises.
        model: Sizes of the model.
        layer_seconds: Seconds that each layer sleeps in a forward pass. It sleeps twice as long in
            a backward pass (sleeping_run.py).
    """

    precision: str
    zero_stage: int
    micro_tokens: int = 64
    global_batch: int = 8
    bucket_elements: int = BUCKET_ELEMENTS
    waits_for_weights: bool = False
    optimizer: Literal["adamw", "muon"] = "adamw"
    muon_precision: Literal["fp32", "bf16"] = "fp32"
    model: dict[str, int] = field(default_factory=lambda: MODEL)
    layer_seconds: float = 0.0

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that `pretrain` and `plan` have in common."""
        names = ("precision", "zero_stage", "micro_tokens")
        return {name: getattr(self, name) for name in names}

    @property
    def optimizer_settings(self) -> dict[str, str]:
        """The settings of the optimizer."""
        return {"name": self.optimizer, "muon_precision": self.muon_precision}

    @property
    def phase(self) -> dict[str, Any]:
        """The settings of the one phase of the run."""
        batch = self.global_batch
        return {"seq_len": SEQ_LEN, "global_batch": batch, "steps": STEPS, "peak_lr": 1e-3}


SEVERAL_BUCKETS = Case("fp32", 1, 8_192, 400, bucket_elements=2**18)
"""Its arithmetic takes about as long as its messages."""
SLEEPING = Case(
    "fp32",
    1,
    bucket_elements=2**18,
    model={"num_layers": 8, "hidden_size": 128, "num_heads": 2, "intermediate_size": 512},
    layer_seconds=0.1,
)
"""Its layers sleep, so its passes take as long on a busy machine as on a quiet one."""
CASES = [
    Case("fp32", 0),
    Case("fp32", 1),
    Case("bf16", 1),
    Case("bf16", 2, micro_tokens=22),
    SEVERAL_BUCKETS,
    replace(SEVERAL_BUCKETS, waits_for_weights=True),
    *(
        replace(SLEEPING, optimizer=optimizer, bucket_elements=size)
        for optimizer in ("adamw", "muon")
        for size in (2**18, BUCKET_ELEMENTS)
    ),
    replace(SLEEPING, optimizer="muon", muon_precision="bf16"),
]
"""In the first four a rank has at most 64 tokens a step, in 1 or 3 micro-batches.

In the last five the model has several buckets, or a single one, which cannot overlap.
"""


def main() -> int:
    """Runs all cases; returns 1 if the plan of one is wrong."""
    exit_on_signals()
    parser = make_parser(__doc__)
    parser.add_argument("--output", type=Path, help="JSON file for the result")
    parser.add_argument("--rate", default="20mbit", help="rate of the link, as tc and plan take it")
    parser.add_argument(
        "--congestion", default="reno", help="TCP's congestion control in the nodes"
    )
    parser.add_argument("--optimizer", choices=["adamw", "muon"], help="run its cases alone")
    options = parser.parse_args()
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        parser.error("needs root, and ip and tc of iproute2")
    cases = [case for case in CASES if options.optimizer in (None, case.optimizer)]
    result = {
        **describe_soak("slow_wire"),
        "rate": options.rate,
        "congestion": options.congestion,
        **measure(options.rate, options.congestion, cases),
    }
    print(json.dumps(result))
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    return int(any(abs(case["measured_over_planned"] - 1) > TOLERANCE for case in result["cases"]))


def measure(rate: str, congestion: str, cases: Sequence[Case]) -> dict[str, Any]:
    """Returns the link alone, and every case with its planned and measured seconds and bytes.

    Args:
        rate: The rate of the link, such as 20mbit.
        congestion: Name of TCP's congestion control, such as reno.
        cases: The cases to run.
    """
    from tests.trainer.tiny_dataset import write_tiny_dataset

    rows = []
    with tempfile.TemporaryDirectory(prefix="beambert-slow-wire-") as name:
        folder = Path(name)
        write_tiny_dataset(folder / "data", instances=200, has_validation=False)
        with linked_nodes(congestion) as nodes:
            limit_link(nodes, rate)
            alone = measure_link(nodes, rate)
            print(json.dumps(alone), file=sys.stderr)
            for number, case in enumerate(cases):
                row = measure_case(folder, nodes, rate, number, case)
                print(json.dumps(row), file=sys.stderr)
                rows.append(row)
    return {"alone": alone, "cases": rows}


def measure_link(nodes: list[str], rate: str) -> dict[str, list[float]]:
    """Returns the shares of the link's rate that plain sockets and Gloo reach, by wire_alone.py.

    Args:
        nodes: Names of the namespaces.
        rate: The rate of the link.
    """
    link = parse_link(rate)
    assert link is not None, "a rate is no NVLink"
    numbers = [PORT, ALONE_BYTES, round(link.node_bytes(1))]
    processes = []
    for rank, node in enumerate(nodes):
        program = [sys.executable, "-W", "ignore", "-m", "scripts.soak.wire_alone"]
        arguments = [str(rank), ADDRESS, *map(str, numbers)]
        command = ["ip", "netns", "exec", node, *program, *arguments]
        processes.append(
            subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE)
        )
    printed = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in processes]
    shares: dict[str, list[float]] = json.loads(printed[0])
    return shares


def measure_case(
    folder: Path, nodes: list[str], rate: str, number: int, case: Case
) -> dict[str, Any]:
    """Trains, and compares the steps after the first one with their plan.

    Args:
        folder: A folder for the runs, with the dataset.
        nodes: Names of the namespaces.
        rate: The rate of the link.
        number: Number of the case.
        case: Settings of the runs.
    """
    output = folder / f"run-{number}"
    limit_link(nodes, None)
    train(folder, nodes, output.with_suffix(".unlimited"), case)
    computing = seconds_of_step(output.with_suffix(".unlimited"))
    limit_link(nodes, rate)
    sent = train(folder, nodes, output, case)
    seconds = seconds_of_step(output)
    planned = plan_case(folder, rate, case, computing)
    return {
        **asdict(case),
        "computing_seconds": round(computing, 3),
        "planned_seconds": round(planned["seconds"], 3),
        "measured_seconds": round(seconds, 3),
        "measured_over_planned": round(seconds / planned["seconds"], 3),
        "planned_bytes": round(planned["bytes"]),
        "measured_bytes": round((sent[STEPS] - sent[1]) / (STEPS - 1)),
        "load": round(os.getloadavg()[0], 1),
    }


def seconds_of_step(output: Path) -> float:
    """Returns the median of the seconds of all steps but the first."""
    return float(statistics.median(row["seconds"] for row in train_rows(output)[1:]))


def train_rows(output: Path) -> list[dict[str, Any]]:
    """Returns the rows of metrics.jsonl so far, one for each step."""
    path = output / "metrics.jsonl"
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in rows if row["split"] == "train"]


def plan_case(folder: Path, rate: str, case: Case, computing: float) -> dict[str, float]:
    """Returns the seconds, and the bytes that a rank sends, in a step by `trainer plan`.

    Args:
        folder: The folder with the dataset.
        rate: The rate of the link.
        case: Settings of the runs.
        computing: Seconds of a step over the unlimited link, which count as arithmetic.
    """
    from trainer.engine.muon_costs import count_muon_costs
    from trainer.model.config import ModelSettings
    from trainer.preflight.plan import plan_phases, wire_of
    from trainer.preflight.settings import PlanSettings
    from trainer.settings import Phase
    from trainer.stream.order.source import open_mixture

    settings = PlanSettings(
        data=[str(folder / "data")],
        phases=[Phase(**case.phase)],
        model=ModelSettings("tiny", case.model),
        world_size=2,
        node_size=1,
        link=rate,
        gpu="cpu",
        peak_tflops=1.0,  # not used: the seconds of arithmetic are measured
        **case.settings,
    )
    mixture = open_mixture(settings.data, None)
    config = settings.model_config(mixture[0].dataset.manifest.vocab_size)
    [plan] = plan_phases(settings, config, mixture)
    micro_batches = plan.micro_batches
    traffic = count_traffic(
        config,
        case.zero_stage,
        case.precision,
        2,
        micro_batches,
        by_gloo=True,
        bucket_size=case.bucket_elements,
    )
    wire = wire_of(settings)
    updating = 0.0
    if case.optimizer == "muon":
        costs = count_muon_costs(config, case.zero_stage, 2, case.bucket_elements)
        traffic = add_exchanges(traffic, costs, case.muon_precision)
        updating = costs.flops / orthogonalising_rate(case)
    passes = computing - updating
    seconds = time_step(traffic, wire, passes, micro_batches, updating=updating).seconds
    if case.waits_for_weights:
        gradients = replace(traffic, weight_bytes=0.0, weight_trips=0)
        weights = replace(traffic, gradient_bytes=0.0, gradient_trips=0)
        seconds = time_step(gradients, wire, computing, micro_batches).seconds
        seconds += time_step(weights, wire, 0.0, 1).wire
    return {"seconds": seconds, "bytes": traffic.total_bytes}


def orthogonalising_rate(case: Case) -> float:
    """Returns the operations per second at which one thread orthogonalises a case's matrices."""
    import torch

    from trainer.optim.muon import orthogonalise
    from trainer.optim.owners import orthogonalising_flops

    torch.set_num_threads(1)
    shape = (case.model["intermediate_size"], case.model["hidden_size"])
    is_half = case.muon_precision == "bf16"
    matrix = torch.randn(shape, dtype=torch.bfloat16 if is_half else torch.float32)
    seconds = []
    for _ in range(9):
        began = time.monotonic()
        orthogonalise(matrix)
        seconds.append(time.monotonic() - began)
    return orthogonalising_flops(shape) / statistics.median(seconds)


def train(folder: Path, nodes: list[str], output: Path, case: Case) -> dict[int, int]:
    """Trains with one rank on each node.

    Returns:
        The bytes that the first node had sent at the end of each step.

    Raises:
        RuntimeError: A rank failed; the message has the end of its output.
    """
    buckets = {"zero_optimization": {"reduce_bucket_size": case.bucket_elements}}
    Path(f"{output}.json").write_text(json.dumps(buckets))
    config = {
        **case.settings,
        "phases": [case.phase],
        "optimizer": case.optimizer_settings,
        "deepspeed": f"{output}.json",
        "model": {"preset": "tiny", "overrides": case.model},
        "validation": {"interval": 0},
        "checkpoint": {"interval": 0},
        "safety": {"weights_interval": 0},
        "compile": False,
    }
    Path(f"{output}.yaml").write_text(yaml.safe_dump(config))
    processes = []
    for rank, node in enumerate(nodes):
        address = ["--master_addr", ADDRESS, "--master_port", str(PORT)]
        place = ["--nnodes", "2", "--nproc_per_node", "1", "--node_rank", str(rank), *address]
        command = ["ip", "netns", "exec", node, sys.executable, "-m", "torch.distributed.run"]
        program = ["-m", "trainer"]
        if case.waits_for_weights:
            program = [f"{ROOT}/scripts/soak/waiting_run.py"]
        if case.layer_seconds:
            program = [f"{ROOT}/scripts/soak/sleeping_run.py", str(case.layer_seconds)]
        flags = ["--config", f"{output}.yaml", "--data", f"{folder}/data", "--output", str(output)]
        with Path(f"{output}-{rank}.log").open("w") as log:
            process = subprocess.Popen(
                [*command, *place, *program, "pretrain", *flags],
                cwd=folder,
                env=environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        processes.append(process)
    sent: dict[int, int] = {}
    deadline = time.monotonic() + LIMIT_SECONDS
    try:
        while any(process.poll() is None for process in processes):
            sent.setdefault(len(train_rows(output)), bytes_sent(nodes[0]))
            time.sleep(POLL_SECONDS)
            if time.monotonic() > deadline:
                raise RuntimeError(f"{case}: not finished after {LIMIT_SECONDS} seconds")
    finally:
        for process in processes:
            process.kill()
        kill_processes(nodes)
    for rank, process in enumerate(processes):
        if process.returncode:
            text = Path(f"{output}-{rank}.log").read_text()[-2_000:]
            raise RuntimeError(f"{case}: exit code {process.returncode}: {text}")
    return sent


def environment() -> dict[str, str]:
    """Returns the environment of a process on a node."""
    inherited = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("RANK", "WORLD_SIZE", "LOCAL_"))
    }
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LINK}
    return inherited | own


def bytes_sent(node: str) -> int:
    """Returns the bytes that a node has sent over the link, with the headers of the packets."""
    command = ["ip", "-n", node, "-s", "-json", "link", "show", LINK]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return int(json.loads(found)[0]["stats64"]["tx"]["bytes"])


@contextlib.contextmanager
def linked_nodes(congestion: str) -> Iterator[list[str]]:
    """Yields the names of two namespaces that a link joins, and removes them at the end.

    Args:
        congestion: Name of TCP's congestion control in the namespaces, such as reno.
    """
    nodes = [f"bert-wire-{letter}-{os.getpid()}" for letter in "ab"]
    try:
        for node in nodes:
            _do(f"ip netns add {node}")
        first, second = nodes
        _do(f"ip link add {LINK} netns {first} type veth peer name {LINK} netns {second}")
        for number, node in enumerate(nodes, start=1):
            _do(f"ip -n {node} address add 10.78.0.{number}/24 dev {LINK}")
            for link in ("lo", LINK):
                _do(f"ip -n {node} link set {link} up")
            control = "/proc/sys/net/ipv4/tcp_congestion_control"
            _do(f"ip netns exec {node} sh -c", f"echo {congestion} >{control}")
        yield nodes
    finally:
        kill_processes(nodes)
        for node in nodes:
            subprocess.run(["ip", "netns", "delete", node], check=False, capture_output=True)


def kill_processes(nodes: list[str]) -> None:
    """Kills all processes on the nodes.

    The ranks are children of torchrun. If torchrun alone is killed, they go on.
    """
    for node in nodes:
        command = ["ip", "netns", "pids", node]
        found = subprocess.run(command, check=False, capture_output=True, text=True).stdout
        for process_id in map(int, found.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)


def limit_link(nodes: list[str], rate: str | None) -> None:
    """Limits what each node sends to a rate such as 20mbit; None takes the limit away."""
    for node in nodes:
        place = f"tc -n {node} qdisc"
        if rate is None:
            subprocess.run(f"{place} del dev {LINK} root".split(), check=False, capture_output=True)
        else:
            _do(f"{place} replace dev {LINK} root tbf rate {rate} burst 64kb latency 100ms")


def _do(command: str, *arguments: str) -> None:
    subprocess.run([*command.split(), *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
