"""Ctrl-C and SIGTERM end a command with one line and exit code 128 + the signal's number.

Python runs a signal's handler only when its main thread is back from C, where it may import or wait
for minutes. So a thread hears signals too, which can end the process whatever the main thread does.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

INTERRUPTED = "interrupted"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
Handler = Callable[[int, FrameType | None], None]


class Interrupted(KeyboardInterrupt):
    """The command was told to end; the text says what is kept.

    `number` is the signal where only its handler knows it, otherwise 0.
    """

    def __init__(self, text: str, number: int = 0) -> None:
        super().__init__(text)
        self.number = number


class Interruption:
    """Whether a command was told to end, and how it does.

    Attributes:
        unwinds: Whether the command ends in order, by a KeyboardInterrupt in its main thread.
            Otherwise, and when it is told again, the process ends at once.
        number: The signal that came, 0 for none.
    """

    def __init__(self) -> None:
        self.unwinds = False
        self.number = 0
        self._heard = 0

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """While this holds, signals end the command by a KeyboardInterrupt.

        Whatever else an interrupted command raises means only that.
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
        """Says that the command was interrupted; its exit code."""
        say_from_rank_0(str(error) or INTERRUPTED)
        if self.number:  # nothing is left that the interpreter's end could save
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        number = error.number if isinstance(error, Interrupted) else 0
        return 128 + (number or self.number or signal.SIGINT)

    def _hear(self, number: int) -> None:
        if not self.unwinds or self._heard:
            leave_interrupted(number)
        self._heard = number

    def _interrupt(self, number: int, _frame: FrameType | None) -> None:
        if self.unwinds and not self.number:
            self.number = number
            raise KeyboardInterrupt


@contextlib.contextmanager
def heard(numbers: Iterable[int], hear: Callable[[int], None], handler: Handler) -> Iterator[None]:
    """While this holds, a thread calls `hear` with each signal; then the main thread handles it.

    Signals that the process was started to ignore, as by nohup, stay ignored. Outside the main
    thread nothing happens.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    watched = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def listen() -> None:
        while said := os.read(reader, 64):
            for number in said:
                if number in watched:
                    hear(number)
        os.close(reader)

    threading.Thread(target=listen, name="signals", daemon=True).start()
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = {number: signal.signal(number, handler) or signal.SIG_DFL for number in watched}
    try:
        yield
    finally:
        for number, each in before.items():
            signal.signal(number, each)
        signal.set_wakeup_fd(wakeup)
        os.close(writer)


def leave_interrupted(number: int, *_: object) -> None:
    """Ends the process at once with a line from rank 0."""
    after_echo = "\n" if sys.stderr.isatty() else ""  # a terminal shows ^C
    say_from_rank_0(f"{after_echo}{INTERRUPTED}")
    os._exit(128 + number)


def leave_while_importing() -> None:
    """Until a command has begun, Ctrl-C ends the process with a line instead of a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave_interrupted)


def say_from_rank_0(text: str) -> None:
    """A line on standard error, where other ranks of the job say nothing."""
    if os.environ.get("RANK", "0") == "0":
        with contextlib.suppress(OSError):  # nobody may be reading any more
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
