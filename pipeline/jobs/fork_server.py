"""The fork server: a warm process from which the worker processes of all jobs are forked, each within milliseconds.

Importing Beam takes a second of CPU time, which every worker of every job would spend anew. This process imports, while
the launcher does too, all that a worker needs; then it only waits and forks. It has one thread, no gRPC and no
filesystem: they come after the fork. `pipeline.jobs.forked_workers` starts it and says what goes over the socket. It
ends with the launcher.
"""

import contextlib
import gc
import importlib
import json
import logging
import os
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

from pipeline.jobs import worker_guard

LENGTH = struct.Struct("!I")
NUM_DESCRIPTORS = 3  # standard output and error of the worker, and the pipe that says how it ended
# What would start threads when it is imported: numpy's BLAS and Arrow's allocator.
SINGLE_THREADED = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
_WORKER = "apache_beam.runners.worker.sdk_worker_main"
_JOBS = (
    "pipeline.jobs.vocab_job",
    "pipeline.jobs.tokens_job",
    "pipeline.jobs.near_duplicates_job",
    "pipeline.jobs.shards_job",
)


@dataclass(frozen=True)
class Request:
    """A worker to start.

    Attributes:
        environment: All of its environment variables.
        folder: Its working directory.
        path: Its import path.
        streams: Descriptors of its standard output and error.
        pipe: Descriptor to write to how it ended.
    """

    environment: Mapping[str, str]
    folder: str
    path: Sequence[str]
    streams: Sequence[int]
    pipe: int


@dataclass(frozen=True)
class _Server:
    """What the fork server holds, and a worker must let go of.

    Attributes:
        launcher: Requests come from it; at its end the launcher is gone.
        wake: Can be read when a child has ended.
        wakened: Its other end.
        pipes: Where to say how each worker ended, by its pid.
    """

    launcher: socket.socket
    wake: int
    wakened: int
    pipes: dict[int, int] = field(default_factory=dict)

    def descriptors(self) -> list[int]:
        return [self.launcher.fileno(), self.wake, self.wakened, *self.pipes.values()]


def serve(descriptor: int) -> NoReturn:
    """Forks workers until the launcher's end of the socket is closed, and ends with those that are left.

    Args:
        descriptor: Of this end of the socket.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts the launcher too, which ends its workers
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    # Beam says on import, through the root logger, that an optional client of Google's is absent.
    logging.getLogger().addFilter(lambda record: "apitools not found" not in record.getMessage())
    for module in (_WORKER, *_JOBS):
        importlib.import_module(module)
    gc.freeze()  # to look for garbage among what is imported would copy pages that all workers share
    server = _Server(socket.socket(fileno=descriptor), *_wake_when_a_child_ends())
    while True:
        readable, _, _ = select.select([server.launcher.fileno(), server.wake], [], [])
        if server.wake in readable:
            os.read(server.wake, 4096)
            _report_ended(server.pipes)
        if server.launcher.fileno() in readable:
            request = _read_request(server.launcher)
            if request is None:
                break
            _fork_worker(server, request)
    for pid in server.pipes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _wake_when_a_child_ends() -> tuple[int, int]:
    """A pipe whose first end can be read from then on."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _ignore)
    return readable, writable


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """A handler that does nothing, but lets the wake-up through."""


def _report_ended(pipes: dict[int, int]) -> None:
    """Says of each worker that has ended how it did."""
    with contextlib.suppress(ChildProcessError):  # none is left
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            pid, status = ended
            with contextlib.suppress(BrokenPipeError), os.fdopen(pipes.pop(pid), "wb") as pipe:
                pipe.write(b"%d" % os.waitstatus_to_exitcode(status))


def _read_request(launcher: socket.socket) -> Request | None:
    """The next request; None where the launcher is gone."""
    head, descriptors, _, _ = socket.recv_fds(launcher, LENGTH.size, NUM_DESCRIPTORS)
    if len(head) < LENGTH.size:
        return None
    for each in descriptors:
        os.set_inheritable(each, False)  # another worker's pipe must not stay open in a fresh interpreter
    (length,) = LENGTH.unpack(head)
    data = launcher.recv(length, socket.MSG_WAITALL)
    if len(data) < length:
        return None
    return Request(**json.loads(data), streams=descriptors[:-1], pipe=descriptors[-1])


def _fork_worker(server: _Server, request: Request) -> None:
    # A fork of several threads would leave the child locks that nobody opens: then a fresh interpreter must do.
    is_alone = len(list(Path("/proc/self/task").iterdir())) == 1
    pid = os.fork()
    if pid == 0:
        try:
            _become_worker(server, request, is_alone=is_alone)
        except BaseException:  # noqa: BLE001  (the process ends with it)
            traceback.print_exc()
        finally:
            os._exit(1)
    server.pipes[pid] = request.pipe
    for stream in request.streams:
        os.close(stream)


def _become_worker(server: _Server, request: Request, *, is_alone: bool) -> NoReturn:
    """Turns this process, just forked, into a worker of Beam, and ends it when that has no more to do."""
    for number, stream in enumerate(request.streams, 1):
        os.dup2(stream, number)
    os.chdir(request.folder)
    if not is_alone:
        os.execve(sys.executable, [sys.executable, "-m", _WORKER], request.environment)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for descriptor in (*server.descriptors(), *request.streams, request.pipe):
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.path[:] = request.path
    importlib.invalidate_caches()
    if worker_guard.VARIABLE in os.environ:
        worker_guard.start_watching(os.environ[worker_guard.VARIABLE])
    os._exit(_run_worker())


def _run_worker() -> int:
    """Beam's worker to its end; the exit code."""
    try:
        importlib.import_module(_WORKER).main([])
    except BaseException:  # noqa: BLE001  (the process ends with it)
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0
