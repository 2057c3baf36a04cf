"""Starts the ranks of a test on this machine and makes micro-batches of random tokens for them."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from tests.loaded_python import Program
from tests.ports import free_port
from trainer.stream.batches.pack import MicroBatch

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def launchers_environment() -> dict[str, str]:
    """Of a launcher that a person starts: it finds this Python and these modules."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def run_ranks(
    command: Sequence[str], world_size: int, timeout: float = 600
) -> list[subprocess.CompletedProcess]:
    """Runs `python COMMAND...` once a rank, as a launcher would; how they ended, by rank."""
    return run_nodes([(command, world_size)], timeout)


def run_nodes(
    nodes: Sequence[tuple[Sequence[str], int]], timeout: float = 600, cwd: Path = ROOT
) -> list[subprocess.CompletedProcess]:
    """Runs a command and a number of ranks for every node; the finished processes, by rank."""
    with start_nodes(nodes, cwd) as programs:
        return [program.wait(timeout) for program in programs]


@contextlib.contextmanager
def start_nodes(
    nodes: Sequence[tuple[Sequence[str], int]], cwd: Path = ROOT
) -> Iterator[list[Program]]:
    """The programs of `run_nodes`, which end with the block."""
    places = [(command, local_rank, size) for command, size in nodes for local_rank in range(size)]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": len(places)}
    with contextlib.ExitStack() as programs:
        started = []
        for rank, (command, local_rank, size) in enumerate(places):
            place = {**address, "RANK": rank, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": size}
            variables = {name: str(value) for name, value in place.items()}
            started.append(programs.enter_context(Program(command, cwd, **variables)))
        yield started


def random_micro_batch(lengths: Sequence[int], vocab_size: int, seed: int) -> MicroBatch:
    """Packed sequences of the given lengths, about a sixth of their tokens masked."""
    generator = torch.Generator().manual_seed(seed)
    num_tokens = sum(lengths)
    positions = torch.cat([torch.arange(length) for length in lengths])
    drawn = torch.randperm(num_tokens, generator=generator)
    masked = drawn[: max(1, num_tokens // 6)].sort().values
    return MicroBatch(
        input_ids=torch.randint(5, vocab_size, (num_tokens,), generator=generator),
        cu_seqlens=torch.tensor([0, *lengths]).cumsum(0).int(),
        token_type_ids=(positions > 4).long(),
        position_ids=positions,
        masked_positions=masked,
        masked_labels=torch.randint(5, vocab_size, (len(masked),), generator=generator),
        is_random_next=torch.randint(0, 2, (len(lengths),), generator=generator),
        max_seqlen=max(lengths),
    )
