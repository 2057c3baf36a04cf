"""Ends a job in which a rank hangs, names it, and leaves all stacks in RUN/stacks.

Each rank notes when its loop last came by; where that is too long ago its watchdog thread writes
down all stacks. The first rank that is alive then asks the others over sockets of their own: who
does not answer is stopped or gone, who answers from an earlier place holds the others up.
"""

import contextlib
import faulthandler
import json
import os
import platform
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.storage.terminal import say
from trainer.process.ranks import Ranks

HUNG = 75
"""Exit code of a job that the watchdog ended."""

ANSWER_SECONDS = 5.0
KILL_SECONDS = 3
FIRST_STEP_FACTOR = 3


class Peer(NamedTuple):
    """Where a rank answers: its number, machine and process, with IP address and port."""

    rank: int
    host: str
    pid: int
    address: tuple[str, int]

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"


class Watchdog:
    """Threads of one rank: one answers the others, one looks at the clock."""

    def __init__(self, limit_seconds: float, folder: Path, ranks: Ranks) -> None:
        """Exchanges addresses, called by all ranks; a limit of 0 watches nothing."""
        self._limit, self._folder, self._rank = limit_seconds, folder, ranks.rank
        self._beats, self._place = 0, "start"
        self._deadline = float("inf")
        self._closed = threading.Event()
        if not limit_seconds:
            return
        self._listener = socket.create_server((_own_address(), 0), backlog=128)
        mine = Peer(ranks.rank, platform.node(), os.getpid(), self._listener.getsockname())
        self._peers: list[Peer] = ranks.gather(mine)
        self.beat("start", FIRST_STEP_FACTOR)
        for target in (self._answer, self._watch):
            threading.Thread(target=target, name=f"watchdog {target.__name__}", daemon=True).start()

    def beat(self, place: str, factor: float = 1.0) -> None:
        """Says that the loop came by; what comes next may take `factor` times the limit."""
        self._beats += 1
        self._place = place
        if self._limit:
            self._deadline = time.monotonic() + factor * self._limit

    def close(self) -> None:
        """Stops watching."""
        self._closed.set()
        if self._limit:
            self._listener.close()

    def _watch(self) -> None:
        while time.monotonic() < self._deadline:
            if self._closed.wait(min(1.0, self._limit / 10)):
                return
        self._write_stacks()
        if any(_ask(peer) for peer in self._peers[: self._rank]):
            time.sleep(3 * ANSWER_SECONDS)  # the reporter asks meanwhile
        else:
            self._report()
        os._exit(HUNG)

    def _report(self) -> None:
        with ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(_ask, self._peers))
        text = describe_hang(self._peers, answers)
        since = f"no rank has come further for {self._limit:.0f} s"
        message = f"watchdog: {since}. {text} Stacks: {self._folder}"
        say(message, is_aside=True)
        with contextlib.suppress(OSError):
            (self._folder / "report.txt").write_text(message + "\n")
        here = [peer for peer in self._peers if peer.host == platform.node()]
        _kill_later([peer.pid for peer in here if answers[peer.rank] is None])

    def _write_stacks(self) -> None:
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / f"rank-{self._rank:05d}.txt").open("w") as file:
                host = f"{platform.node()}, process {os.getpid()}"
                file.write(f"rank {self._rank} on {host}: {self._place}\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)

    def _answer(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(ANSWER_SECONDS)
                answer = {"beats": self._beats, "place": self._place}
                connection.sendall(json.dumps(answer).encode())


def describe_hang(peers: Sequence[Peer], answers: Sequence[dict[str, Any] | None]) -> str:
    """Who is at fault, by who answered and from where."""
    pairs = list(zip(peers, answers, strict=True))
    if silent := [f"{peer} (process {peer.pid})" for peer, answer in pairs if answer is None]:
        return f"No answer from {', '.join(silent)}: stopped, or its machine is gone."
    found = [(peer, answer["beats"], answer["place"]) for peer, answer in pairs if answer]
    behind = min(beats for _, beats, _ in found)
    if any(beats > behind for _, beats, _ in found):
        slow = [f"{peer} (at {place})" for peer, beats, place in found if beats == behind]
        return f"All ranks answer; behind the others is {', '.join(slow)}."
    place = found[0][2]
    return f"All ranks answer from the same place ({place}); their stacks tell where each waits."


def _kill_later(pids: Sequence[int]) -> None:
    """Kills stopped processes before their launchers do, but after those saw this one's code."""
    if pids:
        words = ["/bin/sh", "-c", f"sleep {KILL_SECONDS}; kill -KILL {' '.join(map(str, pids))}"]
        subprocess.Popen(words, start_new_session=True, stderr=subprocess.DEVNULL)


def _ask(peer: Peer) -> dict[str, Any] | None:
    """A rank's answer; None where none comes."""
    try:
        with socket.create_connection(peer.address, timeout=ANSWER_SECONDS) as connection:
            data = b"".join(iter(lambda: connection.recv(4096), b""))
            return dict(json.loads(data))
    except (OSError, ValueError):
        return None


def _own_address() -> str:
    """This machine's address towards the others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], 9))
        return str(probe.getsockname()[0])
