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
"""The line that an interrupted command prints, unless it can also say what is kept."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
Handler = Callable[[int, FrameType | None], None]


class Interrupted(KeyboardInterrupt):
    """Says that the command was interrupted, with a message for the user about what is kept.

    `Interruption.report` prints the message in place of "interrupted".

    Attributes:
        number: The number of the signal, for the exit code. 0 leaves it to `Interruption`, which
            knows the signal that it has handled.
    """

    def __init__(self, text: str, number: int = 0) -> None:
        super().__init__(text)
        self.number = number


class Interruption:
    """Ends a command on SIGINT (Ctrl-C) or SIGTERM, and remembers which of them arrived.

    Attributes:
        unwinds: What the first signal does. If True, it raises KeyboardInterrupt in the main
            thread, so that the command can clean up, and a second signal ends the process at once.
            If False, the first signal does. The caller may change this at any time.
        number: The number of the signal for which KeyboardInterrupt was raised; 0 if none was.
    """

    def __init__(self) -> None:
        self.unwinds = False
        self.number = 0
        self._heard = 0

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Handles SIGINT and SIGTERM while the context lasts, as `unwinds` says.

        Raises:
            KeyboardInterrupt: A signal arrived and `unwinds` is True. An error that the command
                raises after the signal becomes the cause of this KeyboardInterrupt, because the
                signal made the command fail.
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
        """Prints the message of an interruption, and returns the exit code of the process.

        Args:
            error: The KeyboardInterrupt that ended the command. If it has no text, "interrupted"
                is printed.

        Returns:
            128 + the number of the signal.
        """
        say_from_rank_0(str(error) or INTERRUPTED)
        if self.number:  # everything is saved: another Ctrl-C may end the interpreter at once
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        number = error.number if isinstance(error, Interrupted) else 0
        return 128 + (number or self.number or signal.SIGINT)

    def _hear(self, number: int) -> None:
        """Handles a signal in the thread that hears signals at once.

        It ends the process, unless `unwinds` is True and this is the first signal. In that case
        `_interrupt` raises KeyboardInterrupt in the main thread.
        """
        if not self.unwinds or self._heard:
            leave_interrupted(number)
        self._heard = number

    def _interrupt(self, number: int, _frame: FrameType | None) -> None:
        """Handles a signal in the main thread: raises KeyboardInterrupt if `unwinds` is True.

        Later signals do nothing here, because `_hear` ends the process on a second one.
        """
        if self.unwinds and not self.number:
            self.number = number
            raise KeyboardInterrupt


@contextlib.contextmanager
def heard(numbers: Iterable[int], hear: Callable[[int], None], handler: Handler) -> Iterator[None]:
    """Calls two functions for each signal that arrives while the context lasts.

    The first function, `hear`, is called at once in a separate thread. The second one, `handler`,
    is called in the main thread, which may be busy in C code for a while.

    Signals that the process was started to ignore, as by nohup, stay ignored. If the context is
    entered in another thread than the main one, it does nothing, because Python sets handlers of
    signals only in the main thread.

    Args:
        numbers: The numbers of the signals.
        hear: Called with the number of the signal.
        handler: Called with the number of the signal and the current stack frame, as the handlers
            of `signal.signal` are.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    watched = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def listen() -> None:
        """Calls `hear` with each signal whose number Python writes to the pipe.

        It returns when the context has closed the pipe.
        """
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
        number: The number of the signal. The exit code is 128 + this number.
        *_: The stack frame, which Python gives if this function is the handler of a signal.
    """
    after_echo = "\n" if sys.stderr.isatty() else ""  # a terminal shows ^C on the line
    say_from_rank_0(f"{after_echo}{INTERRUPTED}")
    os._exit(128 + number)


def leave_while_importing() -> None:
    """Makes Ctrl-C end the process with one line in place of a traceback.

    It is for the seconds in which modules are imported, before a command sets its own handlers. A
    process that ignores Ctrl-C, or has a handler already, is left as it is.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave_interrupted)


def say_from_rank_0(text: str) -> None:
    """Writes a line to standard error if this process is rank 0 of its job, or has no rank."""
    if os.environ.get("RANK", "0") == "0":
        with contextlib.suppress(OSError):  # nobody may be reading any more
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
