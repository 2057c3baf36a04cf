"""Ports that no two tests of this machine are given at the same time."""

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path


def free_port() -> int:
    """A port that nothing listens at and no other test will be given before this process ends.

    It is below those that the system itself gives away meanwhile. A lock on a file of its name
    tells processes of tests apart, for a port is bound only later, by the program that is told of
    it.
    """
    folder = Path(tempfile.gettempdir(), f"beambert-test-ports-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        lock = os.open(folder / str(port), os.O_CREAT | os.O_WRONLY)  # open until the process ends
        with contextlib.suppress(OSError), socket.socket() as listener:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            listener.bind(("", port))
            return port
        os.close(lock)
    raise OSError("none of 100 ports between 20000 and 32000 could be had")
