"""Runs a Beam graph: chooses the runner's options, shows progress, and explains its errors.

By default a graph runs in local worker processes. Their runner is named explicitly, because plain
"DirectRunner" may try to download another one.
"""

import contextlib
import gc
import importlib
import logging
import re
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NoReturn

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment
from tqdm import tqdm

from pipeline.interrupts import INTERRUPTED, Interrupted
from pipeline.jobs import worker_guard
from pipeline.jobs.exchange import ExchangeMode
from pipeline.jobs.remote_job import NO_STAGE_TIMEOUT, Job, first_line, known_options
from pipeline.machine import num_cores, this_machine
from pipeline.shards.growing import RECORDS
from pipeline.storage.folder import Folder
from pipeline.storage.local import find_temporaries
from pipeline.storage.secret_values import hide
from pipeline.storage.terminal import say

_FILE_FAULTS = {
    "FileNotFoundError", "FileExistsError", "PermissionError", "NotADirectoryError",
    "IsADirectoryError", "OSError",
}  # fmt: skip
_USER_FAULTS = {"ValueError", "StorageError", "NoBucketError", *_FILE_FAULTS}
_RAISED_LINE = re.compile(r"(?:^|\n)(?:\w+\.)*(\w+(?:Error|Exception)): ")
_NO_MODULE = re.compile(
    r"No module named '[\w.]+'|Can't get attribute '\w+' on <module '(?:pipeline|tokenizer)[\w.]*'"
)
_INSTALL = "install the launcher's wheel with [pipeline] where workers run (docs/runners.md)"
_BEAM_MARK = " [while running '"
_POLL_SECONDS = 0.25
_SAID_SECONDS = 60.0
WORKER_LOG = f"{RECORDS}/workers.log"
_OWN_RUNNERS = {"FnApiRunner", "LocalRunner"}  # their output goes to a log and is not shown
# Beam waits forever for a worker that ends too early with exit code 0. So a worker that Beam told
# to end exits with 100, of which the shell makes 0, and every other end gives another code than 0.
# - The shell ignores Ctrl-C, which the launcher handles for all workers. If the launcher's lock
#   file is gone, the launcher has ended, and no worker is started.
# - The launcher's working folder is appended to sys.path, because a user's filter may be there.
#   Installed packages come first.
# - Output of workers goes to a file, as Beam raises their errors in the launcher anyway.
_WORKER = (
    "import os, sys, pipeline, tokenizer; sys.path.append(os.getcwd());"
    " from apache_beam.runners.worker.sdk_worker_main import main; main([]); raise SystemExit(100)"
)
_WORKER_COMMAND = (
    f"trap '' INT; [ -e \"${worker_guard.VARIABLE}\" ] || exit 0;"
    f' exec 2>>"${worker_guard.VARIABLE}.log"; OPENBLAS_NUM_THREADS=1'
    f" JE_ARROW_MALLOC_CONF=background_thread:false {shlex.quote(sys.executable)} -c"
    f" {shlex.quote(_WORKER)}; code=$?; [ $code -eq 100 ] || exit $((code ? code : 1))"
)


class LocalRunner(FnApiRunner):  # type: ignore[misc]
    """Beam's runner of local worker processes, which starts a worker by `_WORKER_COMMAND`."""

    def __init__(self) -> None:
        super().__init__(SubprocessSDKEnvironment.from_command_string(_WORKER_COMMAND))


@dataclass(frozen=True)
class Outputs:
    """The files that a job makes, by which its progress is counted and shown.

    Attributes:
        noun: The word for the files in messages, in the plural, such as "shards".
        total: The number of files when the job is finished.
        num_found: The number of files that were there before the job.
        count: Returns the number of files that are there now. It is called from a thread.
        folder: The folder that the files are written to.
        are_kept: Whether the next launch uses the files that an interrupted job has left.
    """

    noun: str
    total: int
    num_found: int
    count: Callable[[], int]
    folder: Folder
    are_kept: bool = True

    def leave(self) -> str:
        """Removes the temporary files that the killed workers of an interrupted job left.

        Returns:
            A sentence for the user: how many of the outputs are kept for the next launch.
        """
        if self.folder.is_local:  # stores hold no such files
            self.folder.remove(find_temporaries(self.folder.list()))
        if not self.are_kept:
            return f"none of the {self.noun} are kept, the same command makes them again"
        return f"{self.count()} of {self.total} {self.noun} are kept, the same command continues"


def pipeline_options(
    workers: int, beam_arguments: Sequence[str], num_tasks: int
) -> PipelineOptions:
    """Returns Beam's options for a job. If the user names no runner, they are for local workers.

    Args:
        workers: The number of local worker processes; fewer start if the machine or the number of
            tasks allow no more.
        beam_arguments: The user's arguments for Beam.
        num_tasks: How many tasks the job can do at the same time.

    Raises:
        ValueError: The runner cannot be imported, an argument is unknown, or the job server that
            the arguments name does not answer.
    """
    if not any(argument.startswith("--runner") for argument in beam_arguments):
        chosen, why = this_machine().limit(workers, num_tasks)
        # Nothing is said if a default number of workers is only limited by the number of tasks.
        if why and (workers > num_cores() or chosen < num_tasks):
            _say_once(f"workers: {why}")
        beam_arguments = [*_local_runner(chosen), *beam_arguments]
    else:
        # The user's own timeout follows, and Beam takes the last one.
        beam_arguments = [NO_STAGE_TIMEOUT, *beam_arguments]
    _import_runner(beam_arguments)
    options = PipelineOptions(list(beam_arguments))
    names = options.get_all_options(retain_unknown_options=True).keys()
    unknown = names - options.get_all_options().keys() - known_options(options)
    if unknown:
        endpoint = options.view_as(PortableOptions).job_endpoint
        who = "Beam does not know"
        if endpoint:
            who = f"neither Beam nor the job server at {endpoint} knows"
        raise ValueError(f"{who} the option(s) after --: {', '.join(sorted(unknown))}")
    return options


@lru_cache(maxsize=64)
def _say_once(line: str) -> None:
    """Prints a line, unless this process has printed it already."""
    say(line, is_aside=True)


def _local_runner(workers: int) -> list[str]:
    """Returns Beam's arguments for a number of local workers.

    A single worker runs in this process. Several run in processes of their own.
    """
    if workers == 1:
        return ["--runner=FnApiRunner", "--direct_running_mode=in_memory", "--direct_num_workers=1"]
    return [f"--runner={__name__}.LocalRunner", f"--direct_num_workers={workers}"]


def _import_runner(beam_arguments: Sequence[str]) -> None:
    """Imports a runner that is named by module and class, so that Beam knows its options.

    Raises:
        ValueError: The module cannot be imported.
    """
    for argument in beam_arguments:
        module, _, name = argument.removeprefix("--runner=").rpartition(".")
        if argument.startswith("--runner=") and module:
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise ValueError(
                    f"the runner {name} cannot be imported: {error}; install what it needs"
                ) from error


def choose_exchange(
    wanted: Literal["auto", "files", "shuffle"], options: PipelineOptions
) -> ExchangeMode:
    """Returns how the documents of buckets are brought together.

    Args:
        wanted: The setting `exchange` of the build. "auto" means "shuffle" on Dataflow. It means
            "files" on every other runner, because those hold a whole group of a shuffle in memory.
        options: The options of the Beam pipeline, which name the runner.
    """
    if wanted != "auto":
        return wanted
    return "shuffle" if _runner_name(options) == "DataflowRunner" else "files"


def _runner_name(options: PipelineOptions) -> str:
    """Returns the name of the runner's class, without its module."""
    return str(options.view_as(StandardOptions).runner).rpartition(".")[-1]


def run_graph(
    describe: str,
    build: Callable[[beam.Pipeline], object],
    options: PipelineOptions,
    outputs: Outputs,
) -> None:
    """Builds and runs a graph to its end, and shows how many outputs are finished.

    Args:
        describe: Name of the job, for messages.
        build: Adds the transforms of the job to a pipeline.
        options: Beam's options.
        outputs: The files that the job makes.

    Raises:
        Interrupted: The process was told to end. The message says what is kept.
        ValueError: A worker found a fault of the user's, such as malformed input. The message is
            the worker's. Or a job that an earlier launcher began is still at work.
        ChildProcessError: A worker process was killed or ended too early.
        RuntimeError: A worker or the runner raised any other error.
    """
    if outputs.num_found:
        say(
            f"{outputs.num_found} of {outputs.total} {outputs.noun} are there from an earlier"
            " launch; continuing",
            is_aside=True,
        )
    is_local = _runner_name(options) in _OWN_RUNNERS
    job = Job(describe, outputs.folder)
    with tempfile.TemporaryDirectory(prefix="beambert-") as folder:
        lock = f"{folder}/lock"
        log = Path(folder, "lock.log")  # written by the workers (_WORKER_COMMAND)
        progress = Progress(describe, outputs, job.state)
        quiet = _quiet_beam() if is_local else contextlib.nullcontext()
        try:
            with quiet, progress.shown(), worker_guard.guard_workers(lock):
                pipeline = beam.Pipeline(options=options)
                build(pipeline)
                gc.freeze()  # so that the garbage collector does not search Beam's modules
                job.run(pipeline)
        except KeyboardInterrupt as error:
            raise Interrupted(f"{INTERRUPTED}; {outputs.leave()}") from error
        except ChildProcessError as error:
            raise ChildProcessError(f"{describe}: {error}") from error
        except Exception as error:
            fault = _find_fault(f"{type(error).__name__}: {error}")
            if fault:
                raise ValueError(fault) from error
            cause = "a worker failed" if is_local else f"the runner ended the job: {_cause(error)}"
            output = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
            where = _keep_log(outputs.folder, hide(f"{output}{error}"))
            raise RuntimeError(f"{describe}: {cause}; all that was said is {where}") from error


def _cause(error: Exception) -> str:
    """Returns one line about a runner's error, with advice if workers lack this package."""
    missing = _NO_MODULE.search(str(error))
    if missing:
        return f"a worker says: {missing[0]}; {_INSTALL}"
    return first_line(error)


def _keep_log(folder: Folder, log: str) -> str:
    """Writes the output of failed workers to a file, or to stderr if that fails.

    The log of a later job replaces the file.

    Args:
        folder: The folder of the job's outputs, which receives the file.
        log: The output of the workers.

    Returns:
        Where the output is, as words for a message: "in URL", or "above" for stderr.
    """
    try:
        folder.write(WORKER_LOG, log.encode())
    except OSError:  # perhaps why the job failed
        sys.stderr.write(log)
        return "above"
    return f"in {folder.locate(WORKER_LOG)}"


def _find_fault(error: str) -> str | None:
    """Returns the message of an error that a worker raised because of a fault of the user's.

    Beam raises an error whose text is the traceback of the worker. In it, the last line that begins
    with the name of an exception tells which error the worker raised.

    Args:
        error: The text of the error that Beam raised.

    Returns:
        The worker's message; None if the exception is not one of those by which this program
        reports faults of the user (`_USER_FAULTS`), such as ValueError.
    """
    raised = error[: error.rfind(_BEAM_MARK)] if _BEAM_MARK in error else error
    matches = list(_RAISED_LINE.finditer(raised))
    if not matches or matches[-1].group(1) not in _USER_FAULTS:
        return None
    return raised[matches[-1].end() :].strip()


@contextlib.contextmanager
def _quiet_beam() -> Iterator[None]:
    """Silences Beam's logger of runners, which logs errors of workers that Beam also raises."""
    logger = logging.getLogger("apache_beam.runners")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


class Progress:
    """Shows how many outputs are finished: as a bar on a terminal, else by one line per minute."""

    def __init__(self, describe: str, outputs: Outputs, state: Callable[[], str]) -> None:
        """Starts with the outputs that were there before the job.

        Args:
            describe: Name of the job, for messages.
            outputs: The files that the job makes.
            state: Asks the runner for the state of the job, such as "RUNNING". Returns an empty
                text if the runner does not tell it.
        """
        self._describe = describe
        self._outputs = outputs
        self._state = state
        self._num = outputs.num_found
        self._still = ""  # what is shown while nothing is finished for minutes
        started = time.perf_counter()
        self._moved = started  # when the last output was finished
        self._said = started  # when the last line was printed

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Shows the progress while the body of the `with` statement runs, from a thread."""
        stop = threading.Event()
        counts: dict[str, Any] = {"initial": self._num, "total": self._outputs.total}
        with tqdm(desc=self._describe, unit="task", file=sys.stderr, disable=None, **counts) as bar:

            def watch() -> None:
                seconds = _POLL_SECONDS
                while not stop.wait(seconds):
                    began = time.perf_counter()
                    self.look(bar, began)
                    # Listing a large folder must stay a small share of what the launcher does.
                    seconds = max(_POLL_SECONDS, 20 * (time.perf_counter() - began))

            watcher = threading.Thread(target=watch, name="progress", daemon=True)
            watcher.start()
            try:
                yield
            finally:
                stop.set()
                watcher.join()
                self.look(bar, time.perf_counter())

    def look(self, bar: "tqdm[NoReturn]", now: float) -> None:
        """Counts the finished outputs and shows their number; `now` is a time.perf_counter()."""
        num = self._num
        with contextlib.suppress(OSError):  # a listing that fails once only delays the bar
            num = self._outputs.count()
        if num != self._num:
            self._num = num
            self._moved = now
        still = self._describe_still(int((now - self._moved) / _SAID_SECONDS))
        if not bar.disable:
            bar.set_postfix_str(still, refresh=False)
            bar.update(num - bar.n)
            bar.refresh()
        elif now - self._said >= _SAID_SECONDS:
            self._said = now
            done = f"{num} of {self._outputs.total} {self._outputs.noun}"
            say(f"{self._describe}: {done}{still and '; '}{still}", is_aside=True)

    def _describe_still(self, minutes: int) -> str:
        """Returns how long no output was finished, and the job's state; empty in the first minute.

        An example is "nothing finished for 3 min, the job is RUNNING". The runner is asked for the
        state once per minute.

        Args:
            minutes: Whole minutes since the last output was finished.
        """
        if not minutes:
            self._still = ""
            return self._still
        waited = f"nothing finished for {minutes} min"
        if not self._still.startswith(waited):
            state = self._state()
            self._still = waited + (f", the job is {state}" if state else "")
        return self._still
