"""The processes of a run and their devices: joining them, failing together, leaving."""

import contextlib
import io
import logging
import os
import resource
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

_GLOO_THREAD, _LOOKS_AT_REST = "pt_gloo_runloop", 3
_alone: list[str] = []  # variables of the environment that a job without a launcher has set


@dataclass(frozen=True)
class Ranks:
    """This process among all of them.

    The counts group is Gloo's, for small facts: agreeing on a step never waits for a GPU.
    """

    rank: int
    world_size: int
    device: torch.device
    counts_group: Any

    def gather(self, value: Any) -> list[Any]:
        """What every rank has, in order of ranks, on each of them; all have to call it."""
        values: list[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(values, value, group=self.counts_group)
        return values

    def from_first(self, value: Any) -> Any:
        """What rank 0 has, on each of them; all have to call it."""
        if self.world_size == 1:
            return value
        values = [value]
        torch.distributed.broadcast_object_list(values, src=0, group=self.counts_group)
        return values[0]

    def peak_memory_bytes(self) -> int:
        """The most memory that this rank has held: tensors on a GPU, or the process on a CPU."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def start_ranks() -> Ranks:
    """Joins the process group that the launcher's environment describes; without one, of one.

    Raises:
        ValueError: Another job has the port where the ranks were to meet.
    """
    if "RANK" not in os.environ:
        alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        os.environ.update(alone | {"MASTER_PORT": "0"})  # the system makes it one that is free
        _alone.extend([*alone, "MASTER_PORT"])
    with quiet_deepspeed():
        import deepspeed
        import deepspeed.ops

        if not torch.cuda.is_available():
            # Otherwise joining compiles a C++ extension for 50 s, and a killed compile leaves a
            # lock behind. With CUDA a look at this dictionary tries out every operation there is.
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        _join(deepspeed.init_distributed)
    # DeepSpeed 0.19.8 calls what torch 2.13 renamed; nothing a user could change.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    elif "OMP_NUM_THREADS" not in os.environ:
        # Ranks on one machine share its cores; two threads a core halve the speed of both.
        torch.set_num_threads(max(1, num_cores() // count_local_ranks()))
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return Ranks(rank, world_size, device, torch.distributed.new_group(backend="gloo"))


def count_local_ranks() -> int:
    """Ranks on this machine, as the launcher says; all ranks where it does not."""
    names = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "WORLD_SIZE")
    return next(int(os.environ[name]) for name in names if os.environ.get(name))


def _join(init_distributed: Callable[..., None]) -> None:
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
    """What a person calls the device: the GPU's name, or the CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "this CPU"


def stop_ranks() -> None:
    """Leaves the process group, so that the interpreter ends without complaint."""
    if torch.distributed.is_initialized():
        import deepspeed.comm

        deepspeed.comm.destroy_process_group()  # with groups that DeepSpeed keeps for the next job
        _let_gloo_rest()
    while _alone:  # programs that this one starts have ranks and ports of their own
        os.environ.pop(_alone.pop(), None)


def _let_gloo_rest(seconds: float = 10.0) -> None:
    """Waits until Gloo's threads, as /proc shows them, have let go of the last tensors.

    DeepSpeed keeps them alive. One that lets go when the interpreter has ended aborts the process:
    "terminate called without an active exception".
    """
    deadline, looks = time.monotonic() + seconds, 0
    while looks < _LOOKS_AT_REST and time.monotonic() < deadline:
        looks = looks + 1 if all(state == "S" for state in _gloo_states()) else 0
        time.sleep(0.01)  # a thread that sleeps as it waits for the interpreter's lock gets it


def _gloo_states() -> Iterator[str]:
    """The state of each of Gloo's threads of this process: S for one that sleeps, as in proc(5)."""
    for path in Path("/proc/self/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # the thread has ended
            stat = path.read_text(encoding="utf-8", errors="replace")
            name, state = stat.partition("(")[2].rsplit(")", 1)
            if name == _GLOO_THREAD:
                yield state.split()[0]


@contextlib.contextmanager
def together(ranks: Ranks) -> Iterator[None]:
    """Raises on every rank what any rank found wrong, as none may wait for one that left."""
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
    """Keeps what DeepSpeed prints about itself from the user; errors come through."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else it warns that it found no GPU
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
    """A GPU if torch finds one; CUDA_VISIBLE_DEVICES= hides them."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
