"""Makes sure that local worker processes end when their launcher ends, which Beam does not.

The launcher is the process that the user started. It locks a file for as long as its job runs. In
every worker a thread waits for the lock on the same file (`watch_in_workers`). If the launcher
dies, even by kill -9, the kernel releases the lock: the thread gets it, and ends its worker.

The launcher ends the job in two cases: if it is told to end itself (Ctrl-C, SIGTERM), and if a
worker ends too early, for which Beam would wait forever. In both cases

1. it releases the lock, so that the workers end;
2. it kills workers that are still there or are started late, until Beam has no thread left that
   starts or awaits one;
3. only then it raises KeyboardInterrupt or ChildProcessError. From here on nothing writes to the
   output, so that a message about what is kept stays true.
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
_BEAMS_THREAD = "run_worker"  # Beam's name of its threads that start and await a worker process
_ENDED = re.compile(r"Worker subprocess exited with return code (-?\d+)")


@contextlib.contextmanager
def guard_workers(path: str) -> Iterator[None]:
    """Ties worker processes that start in the body of the `with` statement to this process.

    They end when this process ends. If a worker ends too early, the body is interrupted.

    Args:
        path: The file to lock, which is created.

    Raises:
        ChildProcessError: A signal ended a worker process, or it ended by itself too early.
        KeyboardInterrupt: This process was told to end, whichever error Beam made of that.
    """
    killed: list[int] = []  # by which signals workers ended; 0 for one that ended by itself
    told: list[int] = []  # by which signals this process was told to end
    other_errors: list[threading.ExceptHookArgs] = []
    releasing = threading.Event()
    is_over = threading.Event()
    hook_before = threading.excepthook
    with Path(path).open("w") as file, contextlib.ExitStack() as stack:
        fcntl.flock(file, fcntl.LOCK_EX)

        def release() -> None:
            releasing.set()
            fcntl.flock(file, fcntl.LOCK_UN)

        arguments = (path, releasing, is_over)
        threading.Thread(target=_end_workers, args=arguments, daemon=True).start()
        stack.enter_context(_interruptible(told, release))

        def see_worker_end(arguments: threading.ExceptHookArgs) -> None:
            # Beam waits for each worker in a thread. That thread raises an error if the worker
            # ends too early, of which Beam's main thread never hears.
            end = _ENDED.fullmatch(str(arguments.exc_value))
            if end is None or releasing.is_set():
                other_errors.append(arguments)
            else:
                killed.append(_signal_of(int(end[1])))
                release()  # so that the other workers end, or Beam would wait for them
                signal.pthread_kill(threading.main_thread().ident or 0, _INTERRUPT)

        threading.excepthook = see_worker_end
        os.environ[VARIABLE] = path
        try:
            yield
        except BaseException as error:
            if told:  # also if a worker got the same signal a moment before, and is in `killed`
                raise KeyboardInterrupt from error
            if killed:
                raise ChildProcessError(_describe(killed[0])) from error
            raise
        finally:
            # Beam may have been interrupted before it awaited all workers, and may even start
            # another one now. Such a worker is found by the variable, so it is deleted later.
            if releasing.is_set():
                _await_worker_threads(path)
            threading.excepthook = hook_before
            if not releasing.is_set():  # errors after a worker was killed only follow from that
                for error_arguments in other_errors:
                    hook_before(error_arguments)
            del os.environ[VARIABLE]
            is_over.set()
            releasing.set()


def watch_launcher(path: str) -> None:
    """Waits until the launcher has released its lock on this file, then ends this process."""
    # If the lock file is gone, the launcher has ended in the normal way.
    with contextlib.suppress(FileNotFoundError), Path(path).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
    os._exit(1)


def _end_workers(path: str, releasing: threading.Event, is_over: threading.Event) -> None:
    """Waits until the launcher releases its lock, and then kills workers until the job is over.

    It looks for workers every half second, so workers that start late are killed too.

    Args:
        path: The lock file of the launcher.
        releasing: Is set when the launcher releases its lock.
        is_over: Is set when the job is over.
    """
    releasing.wait()
    while not is_over.is_set():
        _kill_workers(path)
        is_over.wait(_PAUSE_SECONDS)


def _await_worker_threads(path: str) -> None:
    """Kills workers until no thread of Beam is left that starts or awaits one."""
    while True:
        threads = [thread for thread in threading.enumerate() if thread.name == _BEAMS_THREAD]
        if not threads:
            return
        _kill_workers(path)
        threads[0].join(_PAUSE_SECONDS)


def _kill_workers(path: str) -> None:
    """Kills the worker processes of the launcher.

    Most workers end by themselves when the lock is released. But a worker that is still starting
    does not watch the lock yet. Workers are found in /proc, because the path of the lock is in
    their environment. So this works on Linux only.

    Args:
        path: The lock file of the launcher.
    """
    mark = f"{VARIABLE}={path}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended, or is another user's
            is_worker = mark in Path(folder, "environ").read_bytes().split(b"\0")
            if is_worker and int(folder.name) != os.getpid():
                os.kill(int(folder.name), signal.SIGKILL)


@contextlib.contextmanager
def _interruptible(told: list[int], release: Callable[[], None]) -> Iterator[None]:
    """Handles signals while the body of the `with` statement runs.

    Every handled signal first releases the launcher's lock.

    - `_INTERRUPT`, which this module sends to its own process if a worker ended too early, then
      raises KeyboardInterrupt in the main thread, even while that thread waits.
    - Ctrl-C and SIGTERM then call the handler that was set before. If there was none, they are not
      handled here.

    Ctrl-C in a terminal may also end a worker that is starting, so that both Ctrl-C and
    `_INTERRUPT` arrive. If another signal arrived before, `_INTERRUPT` raises nothing, so that Beam
    is not interrupted while it ends its workers.

    Args:
        told: Receives the numbers of the signals by which this process was told to end.
        release: Releases the launcher's lock.
    """
    signals = (_INTERRUPT, signal.SIGINT, signal.SIGTERM)
    before: dict[int, Any] = {number: signal.getsignal(number) for number in signals}
    raised: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        release()  # first, as an interrupted Beam waits until its workers have ended
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
    """Returns the signal that ended a process, or 0 if none did.

    Args:
        return_code: The process's return code, in which signal 9 is -9 (Popen) or 137 (a shell).
    """
    return max(-return_code, return_code - 128, 0)


def _describe(number: int) -> str:
    """Returns the message about a worker process that ended too early.

    Args:
        number: The signal that ended the worker; 0 if it ended by itself.
    """
    how = f"was killed (signal {number})" if number else "ended by itself, in code that it called"
    if number == signal.SIGKILL:
        memory = "perhaps because memory ran out: fewer --workers need less"
        how = f"was killed (signal {number}, {memory})"
    return f"a worker process {how}; what is finished is kept, the same command continues"


@functools.cache
def watch_in_workers() -> None:
    """Starts a thread that watches the launcher, if this is a worker of a guarded launcher."""
    # The second variable is set only in worker processes that Beam starts itself.
    if VARIABLE in os.environ and "CONTROL_API_SERVICE_DESCRIPTOR" in os.environ:
        arguments = (os.environ[VARIABLE],)
        threading.Thread(target=watch_launcher, args=arguments, name="watch", daemon=True).start()
