"""Ends local worker processes together with their launcher, which Beam itself does not do.

The launcher holds a lock on a file. Importing a module with a Beam job starts a thread in each
worker process, which waits for that lock. When the launcher is gone, even by kill -9, the kernel
releases the lock and the worker ends. If a worker ends too early, the launcher releases the lock,
is interrupted, and raises ChildProcessError. The launcher alone handles signals from a terminal.

An interruption proceeds in this order. The lock is released. Workers are killed until Beam has
unwound, and after that until no thread is left that starts or awaits a worker. Only then does the
launcher go on, so nothing is written any more when it says what is kept.
"""

import contextlib
import fcntl
import functools
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

VARIABLE = "BEAMBERT_LAUNCHER_LOCK"
_INTERRUPT = signal.SIGUSR1  # not SIGINT, which nohup makes its children ignore
_PAUSE_SECONDS = 0.5
_BEAMS_THREAD = "run_worker"  # starts a worker process and awaits it; Beam's name of it
_ENDED = re.compile(r"Worker subprocess exited with return code (-?\d+)")


@contextlib.contextmanager
def guard_workers(path: str) -> Iterator[None]:
    """Worker processes started inside end with this process, and the block with any of them.

    Raises:
        ChildProcessError: A signal ended a worker process, or it ended itself too early.
        KeyboardInterrupt: This process was told to end, whatever Beam made of it.
    """
    killed: list[int] = []
    told: list[int] = []
    others: list[threading.ExceptHookArgs] = []
    releasing, is_over = threading.Event(), threading.Event()
    kept = threading.excepthook
    with Path(path).open("w") as file, contextlib.ExitStack() as stack:
        fcntl.flock(file, fcntl.LOCK_EX)

        def release() -> None:
            releasing.set()
            fcntl.flock(file, fcntl.LOCK_UN)

        ended = (path, releasing, is_over)
        threading.Thread(target=_end_workers, args=ended, daemon=True).start()
        stack.enter_context(_interruptible(told, release))

        def see_worker_end(arguments: threading.ExceptHookArgs) -> None:
            # Beam waits for each worker in a thread, which raises, and tells no other thread.
            found = _ENDED.fullmatch(str(arguments.exc_value))
            if found is None or releasing.is_set():
                others.append(arguments)  # what follows from a killed worker says nothing more
            else:
                killed.append(_signal_of(int(found[1])))
                release()  # the others end too, or Beam would wait for them
                signal.pthread_kill(threading.main_thread().ident or 0, _INTERRUPT)

        threading.excepthook, os.environ[VARIABLE] = see_worker_end, path
        try:
            yield
        except BaseException as error:
            if told:  # perhaps as the workers were, a moment before
                raise KeyboardInterrupt from error
            if killed:
                raise ChildProcessError(_describe(killed[0])) from error
            raise
        finally:
            # Beam may have been interrupted before it awaited all of them, and may even start one
            # now: such a worker needs the variable to be found.
            if releasing.is_set():
                _await_worker_threads(path)
            threading.excepthook = kept
            for arguments in () if releasing.is_set() else others:
                kept(arguments)
            del os.environ[VARIABLE]
            is_over.set()
            releasing.set()


def watch_launcher(path: str) -> None:
    """Waits until the launcher has released its lock, then ends this process at once."""
    # A lock file that is gone means a launcher that ended in order.
    with contextlib.suppress(FileNotFoundError), Path(path).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
    os._exit(1)


def _end_workers(path: str, releasing: threading.Event, is_over: threading.Event) -> None:
    """Waits until the launcher releases its lock, then kills its workers until the job is over."""
    releasing.wait()
    while not is_over.is_set():
        _kill_workers(path)
        is_over.wait(_PAUSE_SECONDS)


def _await_worker_threads(path: str) -> None:
    """Kills workers until no thread of Beam is left that starts or awaits one."""
    while threads := [each for each in threading.enumerate() if each.name == _BEAMS_THREAD]:
        _kill_workers(path)
        threads[0].join(_PAUSE_SECONDS)


def _kill_workers(path: str) -> None:
    """Kills the worker processes of the launcher with this lock.

    A worker that is still starting does not watch the lock yet. On Linux it is found by its
    environment.
    """
    mark = f"{VARIABLE}={path}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            is_own = mark in Path(folder, "environ").read_bytes().split(b"\0")
            if is_own and int(folder.name) != os.getpid():
                os.kill(int(folder.name), signal.SIGKILL)


@contextlib.contextmanager
def _interruptible(told: list[int], release: Callable[[], None]) -> Iterator[None]:
    """Lets `_INTERRUPT` interrupt the main thread, which must run this, while it waits.

    Ctrl-C and SIGTERM do so too if they have a handler; they are noted in `told`. Ctrl-C in a
    terminal may also end a worker that is starting, and so come together with `_INTERRUPT`. The
    second signal must not interrupt Beam while it ends its workers.

    Args:
        told: Receives the numbers of the signals by which this process was told to end.
        release: Releases the launcher's lock.
    """
    signals = (_INTERRUPT, signal.SIGINT, signal.SIGTERM)
    before: dict[int, Any] = {number: signal.getsignal(number) for number in signals}
    raised: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        release()  # first, as Beam waits for its workers where it is interrupted
        raised.append(number)
        if number == _INTERRUPT:
            if len(raised) == 1:
                raise KeyboardInterrupt
            return
        told.append(number)
        before[number](number, frame)

    handled = [number for number in signals if number == _INTERRUPT or callable(before[number])]
    for number in handled:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number] or signal.SIG_DFL)


def _signal_of(return_code: int) -> int:
    """The signal that ended a process, as Popen (-9) or a shell (137) says it; else 0."""
    return max(-return_code, return_code - 128, 0)


def _describe(number: int) -> str:
    how = f"was killed (signal {number})" if number else "ended by itself, in code that it called"
    if number == signal.SIGKILL:
        memory = "perhaps because memory ran out: fewer --workers need less"
        how = f"was killed (signal {number}, {memory})"
    return f"a worker process {how}; what is finished is kept, the same command continues"


@functools.cache
def watch_in_workers() -> None:
    """In a worker process of a guarded launcher, starts the thread that watches it."""
    # Beam gives the second variable to worker processes it starts itself, and to no other.
    if VARIABLE in os.environ and "CONTROL_API_SERVICE_DESCRIPTOR" in os.environ:
        arguments = (os.environ[VARIABLE],)
        threading.Thread(target=watch_launcher, args=arguments, name="watch", daemon=True).start()
