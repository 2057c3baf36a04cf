"""The launcher's side of the fork server: starts it once, and has each local worker process forked from it.

    launcher -- socket: a request for each worker, its output streams and a pipe --> fork server -- fork --> worker
             <-- pipe: how the worker ended; closed without a word where the fork server is gone

Called before the launcher itself imports Beam, so that both import at the same time.
"""

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping

from pipeline.jobs.fork_server import LENGTH, SINGLE_THREADED

IS_SUPPORTED = sys.platform == "linux"  # elsewhere system libraries may not survive a fork


class ForkServer:
    """A fork server of this process; it ends when its socket is closed, by `close` or by the kernel."""

    def __init__(self) -> None:
        """Starts it; what it imports is not waited for."""
        self._lock = threading.Lock()
        self._socket, other = socket.socketpair()
        with other:
            program = f"from pipeline.jobs.fork_server import serve; serve({other.fileno()})"
            # The child has SIGINT blocked until it ignores it: none may find an interpreter that is only starting.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=None if _is_open(1) else subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                env=os.environ | SINGLE_THREADED,
            )
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def run_worker(self, environment: Mapping[str, str], folder: str) -> int:
        """Runs a worker of Beam to its end and returns how it ended, as `subprocess.Popen.returncode` says it.

        It has this process's output streams and import path, and no input. Where the fork server was killed, so is the
        worker.

        Args:
            environment: All environment variables of the worker.
            folder: Its working directory.
        """
        fields = {"environment": dict(environment), "folder": folder, "path": sys.path}
        output = 1 if _is_open(1) else 2
        request = json.dumps(fields).encode()
        ended, pipe = os.pipe()
        try:
            with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(self._socket, [LENGTH.pack(len(request))], [output, 2, pipe])
                self._socket.sendall(request)
        finally:
            os.close(pipe)
        with os.fdopen(ended, "rb", buffering=0) as reader:
            said = reader.read(64)
        return int(said) if said else -signal.SIGKILL

    def close(self) -> None:
        """Ends it, also while it still imports; the workers of a job that is over have ended before."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@functools.cache
def fork_server() -> ForkServer:
    """The fork server of this process, which the first call starts."""
    server = ForkServer()
    atexit.register(server.close)
    return server
