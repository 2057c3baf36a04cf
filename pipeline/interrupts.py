"""Ends a command on Ctrl-C or SIGTERM with one line and exit code 128 + the signal's number.

Python runs a signal's handler only when its main thread is back from C code, where it may import or
wait for minutes. So a second thread hears every signal at once, and can end the process whatever
the main thread does.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

INTERRUPTED = "interrupted"
"""The line that an interrupted command prints, unless it knows more."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
Handler = Callable[[int, FrameType | None], None]


class Interrupted(KeyboardInterrupt):
    """The command was told to end; its text says which results are kept.

    Attributes:
        number: The signal, if the code that raises this has handled it; otherwise 0.
    """

    def __init__(self, text: str, number: int = 0) -> None:
        super().__init__(text)
        self.number = number


class Interruption:
    """Handles the signals that tell a command to end.

    Attributes:
        unwinds: Whether the first signal raises KeyboardInterrupt in the main thread, so that the
            command can clean up. Otherwise, and on a second signal, the process ends at once.
        number: The signal for which KeyboardInterrupt was raised; 0 for none.
    """

    def __init__(self) -> None:
        self.unwinds = False
        self.number = 0
        self._heard = 0

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Handles signals while the context lasts.

        Raises:
            KeyboardInterrupt: A signal told the command to end. If the command then fails with
                another error, KeyboardInterrupt is raised from that error, because the signal was
                the cause.
        """
        try:
            with heard(_SIGNALS, self._hear, self._interrupt):
                yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if self.number:
                raise KeyboardInterrupt from error
            raise

    def report(self, error: KeyboardInterrupt) -> int:
        """Prints that the command was interrupted, and returns the exit code of the process."""
        say_from_rank_0(str(error) or INTERRUPTED)
        if self.number:  # everything is saved: another Ctrl-C may end the interpreter at once
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        number = error.number if isinstance(error, Interrupted) else 0
        return 128 + (number or self.number or signal.SIGINT)

    def _hear(self, number: int) -> None:
        """Ends the process, unless this is the first signal and the main thread is to unwind.

        It is called in the second thread.
        """
        if not self.unwinds or self._heard:
            leave_interrupted(number)
        self._heard = number

    def _interrupt(self, number: int, _frame: FrameType | None) -> None:
        """Raises KeyboardInterrupt on the first signal. It is called in the main thread."""
        if self.unwinds and not self.number:
            self.number = number
            raise KeyboardInterrupt


@contextlib.contextmanager
def heard(numbers: Iterable[int], hear: Callable[[int], None], handler: Handler) -> Iterator[None]:
    """Handles each signal twice while the context lasts: at once in a thread, then in the main one.

    Signals that the process was started to ignore, as by nohup, stay ignored. Outside of the main
    thread the context does nothing, because Python handles signals only in the main thread.

    Args:
        numbers: The signals.
        hear: Called with the number of each signal, at once, in a separate thread.
        handler: Called with the same signal in the main thread, when Python gets to it, as a
            handler of `signal.signal` is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    watched = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def listen() -> None:
        """Calls `hear` with each signal that arrives in the pipe, until the pipe is closed."""
        while received := os.read(reader, 64):  # one byte for each signal
            for number in received:
                if number in watched:
                    hear(number)
        os.close(reader)

    threading.Thread(target=listen, name="signals", daemon=True).start()
    # Python writes the number of each signal to the pipe at once, whatever the main thread does.
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = {number: signal.signal(number, handler) or signal.SIG_DFL for number in watched}
    try:
        yield
    finally:
        for number, previous_handler in before.items():
            signal.signal(number, previous_handler)
        signal.set_wakeup_fd(wakeup)
        os.close(writer)


def leave_interrupted(number: int, *_: object) -> None:
    """Ends the process at once, without cleaning up. Rank 0 prints that it was interrupted.

    Args:
        number: The signal, for the exit code.
        *_: The frame, if this is called as a handler.
    """
    after_echo = "\n" if sys.stderr.isatty() else ""  # a terminal shows ^C on the line
    say_from_rank_0(f"{after_echo}{INTERRUPTED}")
    os._exit(128 + number)


def leave_while_importing() -> None:
    """Makes Ctrl-C end the process with a line instead of a traceback, until a command begins."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave_interrupted)


def say_from_rank_0(text: str) -> None:
    """Writes a line to standard error if this process is rank 0 of its job, or has no rank."""
    if os.environ.get("RANK", "0") == "0":
        with contextlib.suppress(OSError):  # nobody may be reading any more
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
