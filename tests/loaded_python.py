"""A Python that has torch and DeepSpeed loaded: programs begin as forks, without 5 s of imports.

Run as a program, this file is that Python. It has one thread, forks whatever it is asked for and
ends with the process that started it. A fork runs what `python ARGUMENTS` would run: a module, a
file or code. It has output, environment, folder and session of its own, and leaves as every
interpreter does.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Self

ROOT = Path(__file__).resolve().parents[1]
# What a rank imports sooner or later, besides our own modules; not pyarrow, which brings a thread.
LIBRARIES = (
    "fsspec", "numpy", "safetensors.torch", "tokenizers", "torch",
    "torch._dynamo", "torch.utils.tensorboard", "deepspeed", "deepspeed.runtime.zero.muon.muon_optimizer",
)  # fmt: skip
_SHORT, _LONG = 64, 2**20  # bytes of an answer and of a request, at most


class Program:
    """`python ARGUMENTS`, started as a fork.

    Attributes:
        pid: Of its process, which leads a session.
    """

    def __init__(self, arguments: Sequence[object], cwd: Path = ROOT, **variables: str) -> None:
        """Starts it, with this process's environment and these variables."""
        self.args = [sys.executable, *map(str, arguments)]
        self._code: int | None = None
        self._held = contextlib.ExitStack()
        self._files = [self._held.enter_context(tempfile.TemporaryFile()) for _ in range(2)]  # noqa: SIM115
        self._news, theirs = map(
            self._held.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        )
        environment = {**os.environ, "PYTHONPATH": _path(), "OMP_NUM_THREADS": "1", **variables}
        request = {"arguments": self.args[1:], "cwd": str(cwd), "environment": environment}
        files = [theirs.fileno(), *(file.fileno() for file in self._files)]
        socket.send_fds(_server(), [json.dumps(request).encode()], files)
        theirs.close()
        self.pid = int(self._news.recv(_SHORT))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it and whatever it started, where it runs still."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._held.close()

    def said(self) -> str:
        """What it has printed so far, errors last."""
        return "".join(self._read(file) for file in self._files)

    def poll(self) -> int | None:
        """Its exit code, as `subprocess` has it; None while it runs."""
        with contextlib.suppress(TimeoutError, BlockingIOError):
            self.wait(0)
        return self._code

    def wait(self, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """How it ended, and what it printed.

        Raises:
            TimeoutError: It runs still.
        """
        if self._code is None:
            self._news.settimeout(timeout)
            self._code = int(self._news.recv(_SHORT))
        return subprocess.CompletedProcess(self.args, self._code, *map(self._read, self._files))

    @staticmethod
    def _read(file: BinaryIO) -> str:
        return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


def run_python(
    arguments: Sequence[object], cwd: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs `python ARGUMENTS` as a fork: how it ended, and what it printed."""
    with Program(arguments, cwd, **variables) as program:
        return program.wait()


def _path() -> str:
    return os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])


@functools.cache
def _server() -> socket.socket:
    """Where to ask for forks; a process of tests has one loaded Python from its first program."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Output is kept back as for anybody who has not asked Python not to.
    variables = {"PYTHONUNBUFFERED": "", "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    process = subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())],
        env={**os.environ, "PYTHONPATH": _path(), **variables},
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    theirs.close()
    atexit.register(lambda: (ours.close(), process.terminate(), process.wait()))
    return ours


def main(descriptor: int) -> None:
    """Loads libraries and forks until the tests have ended; a fork returns as its program does."""
    for library in LIBRARIES:
        importlib.import_module(library)
    _ = importlib.import_module(
        "deepspeed.ops"
    ).__compatible_ops__  # asks a compiler, half a second
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lack the other threads"
    gc.freeze()
    with socket.socket(fileno=descriptor) as asked:
        while True:
            message, files, *_ = socket.recv_fds(asked, _LONG, 3)
            if not message:
                return
            if os.fork() == 0:
                break
            for file in files:
                os.close(file)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    if _watch(*files):
        _run(**json.loads(message))


def _watch(news: int, output: int, errors: int) -> bool:
    """Forks the program, tells its number and later its exit code; returns in the program alone."""
    child = os.fork()
    if child:
        os.write(news, b"%d" % child)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(BrokenPipeError):  # whoever ended it may not wait for the news
            os.write(news, b"%d" % code)
        os._exit(0)
    os.setsid()
    os.dup2(output, 1)
    os.dup2(errors, 2)
    for file in (news, output, errors):
        os.close(file)
    return True


def _run(arguments: list[str], cwd: str, environment: dict[str, str]) -> None:
    """What `python ARGUMENTS` runs."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    kind, *rest = arguments
    if kind == "-m":
        sys.argv, sys.path[0] = rest, cwd
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], cwd
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = arguments, str(Path(kind).parent)
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    main(int(sys.argv[1]))
