"""Ends a job in which a rank hangs, names the rank, and leaves all stacks in RUN/stacks.

The training loop of each rank calls `Watchdog.beat` at every step. If the last call is too long
ago, the rank's watchdog thread writes the stacks of all its threads to a file. Then the first rank
that still answers asks every rank over a socket, which the collectives do not use, and reports what
it learns. If a rank does not answer, its process has been stopped, for example by SIGSTOP, or its
machine is gone. If all ranks answer, those with fewer beats than the others hold up the job.
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
"""How long a rank that is asked may take to answer."""
KILL_SECONDS = 3
"""Seconds between the end of the reporting rank and the killing of ranks that do not answer."""
FIRST_STEP_FACTOR = 3
"""The factor of the limit for a first step, and for other work that may take as long."""


class Peer(NamedTuple):
    """The address of one rank's watchdog.

    Attributes:
        rank: Number of the rank.
        host: Name of its machine.
        pid: Number of its process on that machine.
        address: IP address and port at which it answers.
    """

    rank: int
    host: str
    pid: int
    address: tuple[str, int]

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"


class Watchdog:
    """Watches one rank, and ends its process if it makes no progress.

    It has two threads: one answers the watchdogs of other ranks, and one watches the time since the
    last call of `beat`.
    """

    def __init__(self, limit_seconds: float, folder: Path, ranks: Ranks) -> None:
        """Exchanges addresses with the other ranks and starts to watch; all ranks have to call it.

        Args:
            limit_seconds: The longest time between two calls of `beat`; 0 watches nothing.
            folder: The folder for stacks and the report.
            ranks: This process and the others of the run.
        """
        self._limit = limit_seconds
        self._folder = folder
        self._rank = ranks.rank
        self._beats = 0
        self._place = "start"
        self._deadline = float("inf")
        self._closed = threading.Event()
        if not limit_seconds:
            return
        self._listener = socket.create_server((_own_address(), 0), backlog=128)
        this_rank = Peer(ranks.rank, platform.node(), os.getpid(), self._listener.getsockname())
        self._peers: list[Peer] = ranks.gather(this_rank)
        self.beat("start", FIRST_STEP_FACTOR)
        for target in (self._answer, self._watch):
            threading.Thread(target=target, name=f"watchdog {target.__name__}", daemon=True).start()

    def beat(self, place: str, factor: float = 1.0) -> None:
        """Tells the watchdog that the rank is alive, and what it does next.

        The next call has to follow within `factor` times the limit of the watchdog.

        Args:
            place: What the rank does next, in words for messages, such as "validation".
            factor: The factor of the limit; infinite lets the rank take any time.
        """
        self._beats += 1
        self._place = place
        if self._limit:
            self._deadline = time.monotonic() + factor * self._limit

    def close(self) -> None:
        """Stops watching, and no longer answers other ranks."""
        self._closed.set()
        if self._limit:
            self._listener.close()

    def _watch(self) -> None:
        """Waits until no `beat` has come in time, writes the stacks and ends the process.

        If no rank before this one answers, this one reports which ranks are at fault. Otherwise an
        earlier rank reports, and this one waits long enough to answer it.

        Time in which this process itself was stopped does not count, because a scheduler such as
        Slurm can suspend all ranks of a job by SIGSTOP and let them continue later.
        """
        pause = min(1.0, self._limit / 10)
        now = time.monotonic()
        while now < self._deadline:
            if self._closed.wait(pause):
                return
            before, now = now, time.monotonic()
            late = now - before - pause
            if late > ANSWER_SECONDS:
                self._deadline += late
        self._write_stacks()
        if any(_ask(peer) for peer in self._peers[: self._rank]):
            time.sleep(3 * ANSWER_SECONDS)  # an earlier rank reports, and needs our answer for it
        else:
            self._report()
        os._exit(HUNG)

    def _report(self) -> None:
        """Asks all ranks, and prints which of them are at fault and writes it to report.txt.

        Ranks on this machine that do not answer are killed some seconds later (`_kill_later`).
        """
        with ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(_ask, self._peers))
        text = describe_hang(self._peers, answers)
        since = f"no rank has come further for {self._limit:.0f} s"
        message = f"watchdog: {since}. {text} Stacks: {self._folder}"
        say(message, is_aside=True)
        with contextlib.suppress(OSError):
            (self._folder / "report.txt").write_text(message + "\n")
        local_peers = [peer for peer in self._peers if peer.host == platform.node()]
        _kill_later([peer.pid for peer in local_peers if answers[peer.rank] is None])

    def _write_stacks(self) -> None:
        """Writes the stacks of this process's threads to a file; does nothing if that fails."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / f"rank-{self._rank:05d}.txt").open("w") as file:
                host = f"{platform.node()}, process {os.getpid()}"
                file.write(f"rank {self._rank} on {host}: {self._place}\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)

    def _answer(self) -> None:
        """Answers other ranks until the watchdog is closed.

        The answer to every connection is a JSON object with the number of beats ("beats") and the
        `place` of the last one ("place").
        """
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
    """Returns a message about which ranks hold up the job.

    Args:
        peers: All ranks.
        answers: For each rank the result of `_ask`: the keys "beats" and "place", or None if the
            rank did not answer.
    """
    pairs = list(zip(peers, answers, strict=True))
    silent = [f"{peer} (process {peer.pid})" for peer, answer in pairs if answer is None]
    if silent:
        return f"No answer from {', '.join(silent)}: stopped, or its machine is gone."
    states = [(peer, answer["beats"], answer["place"]) for peer, answer in pairs if answer]
    fewest_beats = min(beats for _, beats, _ in states)
    if any(beats > fewest_beats for _, beats, _ in states):
        slow = [f"{peer} (at {place})" for peer, beats, place in states if beats == fewest_beats]
        return f"All ranks answer; behind the others is {', '.join(slow)}."
    place = states[0][2]
    return f"All ranks answer from the same place ({place}); their stacks tell where each waits."


def _kill_later(pids: Sequence[int]) -> None:
    """Starts a shell that kills processes of this machine after some seconds.

    A launcher cannot end a stopped process with SIGTERM, and waits long before it kills it. The
    delay lets this process end first, because a launcher exits with the code of the rank that ends
    first.
    """
    if pids:
        numbers = " ".join(map(str, pids))
        command = ["/bin/sh", "-c", f"sleep {KILL_SECONDS}; kill -KILL {numbers}"]
        subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)


def _ask(peer: Peer) -> dict[str, Any] | None:
    """Asks a rank how many beats its watchdog has counted, and what the last one said.

    Returns:
        The keys "beats" and "place", as `Watchdog._answer` sends them; None if the rank does not
        answer in time.
    """
    try:
        with socket.create_connection(peer.address, timeout=ANSWER_SECONDS) as connection:
            data = b"".join(iter(lambda: connection.recv(4096), b""))
            return dict(json.loads(data))
    except (OSError, ValueError):
        return None


def _own_address() -> str:
    """Returns the IP address of this machine in the network of the other ranks.

    It is the address from which a packet to MASTER_ADDR would be sent. No packet is sent.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], 9))
        return str(probe.getsockname()[0])
