"""Lets the processes of a run join each other, choose their devices, fail together and leave."""

import contextlib
import importlib.util
import io
import logging
import os
import resource
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from pipeline.machine import num_cores
from trainer.process.allocation import keep_few_kernels
from trainer.process.precision import Device

_GLOO_THREAD = "pt_gloo_runloop"
_LOOKS_AT_REST = 3
"""Gloo's threads count as idle if they are asleep this many times in a row."""

_alone: list[str] = []
"""Variables of the environment that a process without a launcher has set for itself."""


@dataclass(frozen=True)
class Ranks:
    """This process, and how it talks to the other processes of the run.

    Attributes:
        rank: Number of this process, from 0.
        world_size: Number of processes.
        device: The GPU of this process, or the CPU.
        counts_group: A process group of Gloo, by which ranks exchange small facts such as the
            counts of a step. It works on the CPU, so no rank waits for a GPU.
    """

    rank: int
    world_size: int
    device: torch.device
    counts_group: Any

    def gather(self, value: Any) -> list[Any]:
        """Returns the value that each rank gave, in the order of ranks; every rank must call it."""
        values: list[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(values, value, group=self.counts_group)
        return values

    def from_first(self, value: Any) -> Any:
        """Returns on every rank the value that rank 0 gave.

        Every rank has to call it; the values that the other ranks give do not matter.
        """
        if self.world_size == 1:
            return value
        values = [value]
        torch.distributed.broadcast_object_list(values, src=0, group=self.counts_group)
        return values[0]

    def peak_memory_bytes(self) -> int:
        """Returns the most memory used so far: by tensors on a GPU, or by the process on a CPU."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def start_ranks() -> Ranks:
    """Joins the process group that the launcher describes by variables of the environment.

    Without a launcher this process forms a group of one.

    Raises:
        ValueError: The port where ranks should meet is in use.
    """
    if "RANK" not in os.environ:
        variables = {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "0",  # the system chooses a free one
        }
        os.environ.update(variables)
        _alone.extend(variables)
    with quiet_deepspeed():
        import deepspeed
        import deepspeed.ops

        if not torch.cuda.is_available():
            # Otherwise DeepSpeed compiles a C++ extension for 50 s, and a killed compiler leaves a
            # lock behind. With CUDA this line is not needed, and reading the dictionary would try
            # out every operation.
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        _join(deepspeed.init_distributed)
    # DeepSpeed 0.19.8 calls functions that torch 2.13 renamed. A user cannot change that.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        keep_few_kernels()
        if "OMP_NUM_THREADS" not in os.environ:
            # Ranks on one machine share its cores. With two threads per core both run at half
            # speed.
            torch.set_num_threads(max(1, num_cores() // count_local_ranks()))
    return Ranks(
        rank=torch.distributed.get_rank(),
        world_size=torch.distributed.get_world_size(),
        device=device,
        counts_group=torch.distributed.new_group(backend="gloo"),
    )


def count_local_ranks() -> int:
    """Returns the number of ranks on this machine, or of all ranks if the launcher does not say."""
    names = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "WORLD_SIZE")
    return next(int(os.environ[name]) for name in names if os.environ.get(name))


def _join(init_distributed: Callable[..., None]) -> None:
    """Joins the process group.

    Args:
        init_distributed: DeepSpeed's function of that name.

    Raises:
        ValueError: The port where ranks should meet is in use. The message says what to do.
    """
    try:
        init_distributed(verbose=False)
    except torch.distributed.DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise ValueError(
            f"port {os.environ['MASTER_PORT']}, where the ranks were to meet, is in use, perhaps by"
            " another job; give the launcher another: deepspeed --master_port 29501 ..."
        ) from error


def device_name(device: torch.device) -> str:
    """Returns the name of a device for people, such as "NVIDIA H100 80GB HBM3" or "this CPU"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "this CPU"


def describe_device(device: torch.device) -> Device:
    """Returns the facts about a device that `choose_precision` needs."""
    name = device_name(device)
    if device.type != "cuda":
        return Device(name, bf16_slowdown=_compare_bf16())
    compilers = (os.environ.get("CC", "gcc"), "gcc", "clang")
    has_compiler = any(shutil.which(compiler) for compiler in compilers)
    return Device(
        name=name,
        has_bf16=torch.cuda.is_bf16_supported(including_emulation=False),
        can_compile=has_compiler and importlib.util.find_spec("triton") is not None,
    )


def _compare_bf16(size: int = 128, rounds: int = 5) -> float:
    """Returns the time of a matrix product in bf16 on this CPU, divided by its time in fp32.

    One thread multiplies: on a busy machine several would wait for each other. The fastest round
    counts.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    fastest = {}
    try:
        for dtype in (torch.float32, torch.bfloat16):
            matrix = torch.ones(size, size, dtype=dtype)
            seconds = []
            for _ in range(rounds):
                began = time.perf_counter()
                matrix @ matrix
                seconds.append(time.perf_counter() - began)
            fastest[dtype] = min(seconds)
    finally:
        torch.set_num_threads(num_threads)
    return fastest[torch.bfloat16] / fastest[torch.float32]


def stop_ranks() -> None:
    """Leaves the process group, so that the interpreter can end without an error."""
    if torch.distributed.is_initialized():
        import deepspeed.comm

        # DeepSpeed's function also forgets the groups that it keeps in variables.
        deepspeed.comm.destroy_process_group()
        _let_gloo_rest()
    while _alone:  # programs that this process starts must not inherit them
        os.environ.pop(_alone.pop(), None)


def _let_gloo_rest(seconds: float = 10.0) -> None:
    """Waits until Gloo's threads have released their last tensors and are asleep.

    DeepSpeed keeps these threads alive. If one of them releases a tensor after the interpreter has
    ended, the process aborts: "terminate called without an active exception".

    Args:
        seconds: How long to wait at most.
    """
    deadline = time.monotonic() + seconds
    num_looks = 0
    while num_looks < _LOOKS_AT_REST and time.monotonic() < deadline:
        is_at_rest = all(state == "S" for state in _gloo_states())
        num_looks = num_looks + 1 if is_at_rest else 0
        # A thread may be asleep because it waits for the interpreter's lock; here it gets the lock.
        time.sleep(0.01)


def _gloo_states() -> Iterator[str]:
    """Yields the state of each Gloo thread of this process, as in proc(5): "S" is asleep."""
    for path in Path("/proc/self/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # the thread has ended
            stat = path.read_text(encoding="utf-8", errors="replace")
            name, state = stat.partition("(")[2].rsplit(")", 1)
            if name == _GLOO_THREAD:
                yield state.split()[0]


@contextlib.contextmanager
def together(ranks: Ranks) -> Iterator[None]:
    """Makes a `with` block fail on every rank if it fails on some rank.

    Otherwise the other ranks would wait for the rank that failed. Every rank has to enter the
    block. On the ranks where the block fails, its own error is raised. Only a ValueError or an
    OSError ends the block on the other ranks.

    Raises:
        ValueError: The block failed on another rank only. The message names the first rank on which
            it failed, and has that rank's message.
    """
    fault: Exception | None = None
    try:
        yield
    except (ValueError, OSError) as error:
        fault = error
    messages: list[Any] = [None] * ranks.world_size
    torch.distributed.all_gather_object(messages, fault and str(fault), group=ranks.counts_group)
    if fault is not None:
        raise fault
    for rank, message in enumerate(messages):
        if message is not None:
            raise ValueError(f"rank {rank}: {message}")


@contextlib.contextmanager
def quiet_deepspeed() -> Iterator[None]:
    """Hides DeepSpeed's messages and warnings about itself; its errors still appear."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # or it warns that it found no GPU
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from deepspeed.utils import logger

        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                yield
        finally:
            logger.setLevel(level)


def choose_device() -> torch.device:
    """Returns a GPU if torch finds one, or the CPU; `CUDA_VISIBLE_DEVICES=` hides all GPUs."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
