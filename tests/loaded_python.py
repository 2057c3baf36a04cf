"""A Python that has torch and DeepSpeed loaded: programs begin as forks of it, without 5 seconds of imports.

Run as a program, this file is that Python. It has one thread, forks whatever it is asked for and ends with the
process that started it. A fork runs what `python ARGUMENTS` would run: a module, a file or code. It has output,
environment, folder and session of its own, and leaves as every interpreter does.
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
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What a rank imports sooner or later, besides our own modules; not pyarrow, which brings a thread.
LIBRARIES = (
    "fsspec", "numpy", "safetensors.torch", "tokenizers", "torch",
    "torch._dynamo", "torch.utils.tensorboard", "deepspeed", "deepspeed.runtime.zero.muon.muon_optimizer",
)  # fmt: skip
_MOST_BYTES = 2**20


class Program:
    """`python ARGUMENTS`, started as a fork.

    Attributes:
        pid: Of its process, which leads a session.
    """

    def __init__(self, arguments: Sequence[object], cwd: Path, environment: Mapping[str, str]) -> None:
        """Starts it."""
        self.args = [sys.executable, *map(str, arguments)]
        self._held = contextlib.ExitStack()
        self._said = [self._held.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)]  # noqa: SIM115
        self._news, theirs = map(self._held.enter_context, socket.socketpair())
        request = {"arguments": self.args[1:], "cwd": str(cwd), "environment": dict(environment)}
        files = [theirs.fileno(), *(file.fileno() for file in self._said)]
        socket.send_fds(_server(), [json.dumps(request).encode()], files)
        theirs.close()
        self._lines = self._held.enter_context(self._news.makefile())
        self.pid = int(self._lines.readline())

    def wait(self, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """How it ended, and what it printed.

        Raises:
            TimeoutError: It runs still.
        """
        self._news.settimeout(timeout)
        code = int(self._lines.readline())
        said = [(file.seek(0), file.read())[1] for file in self._said]
        return subprocess.CompletedProcess(self.args, code, *said)

    def close(self) -> None:
        """Ends it and whatever it started, where something runs still."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._held.close()


def run_python(arguments: Sequence[object], cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs `python ARGUMENTS`, with this process's environment and these variables."""
    program = Program(arguments, cwd, {**os.environ, "OMP_NUM_THREADS": "1", **variables})
    try:
        return program.wait()
    finally:
        program.close()


@functools.cache
def _server() -> socket.socket:
    """Where to ask for forks; a process of tests has one loaded Python, from its first program on."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    theirs.close()
    atexit.register(lambda: (ours.close(), process.wait()))
    return ours


def main(descriptor: int) -> None:
    """Loads the libraries and forks until the tests have ended; a fork returns when its program does."""
    for library in LIBRARIES:
        importlib.import_module(library)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lack the other threads"
    gc.freeze()
    with socket.socket(fileno=descriptor) as asked:
        while True:
            message, files, *_ = socket.recv_fds(asked, _MOST_BYTES, 3)
            if not message:
                return
            if os.fork() == 0:
                break
            for file in files:
                os.close(file)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    _watch(*files) and _run(**json.loads(message))


def _watch(news: int, output: int, errors: int) -> bool:
    """Forks the program, tells its number and, in the end, its exit code; returns in the program alone."""
    child = os.fork()
    if child:
        os.write(news, b"%d\n" % child)
        os.write(news, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
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
