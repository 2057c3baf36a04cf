"""Running a Beam graph: the runner's options, progress, and a user's fault out of a traceback.

Worker processes are the local default, named explicitly: plain "DirectRunner" may try to download
another runner.
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
_OWN_RUNNERS = {"FnApiRunner", "LocalRunner"}  # what they print is kept for people, not shown
# Beam waits for ever for a worker that ends too early with code 0, so 0 is what one that was told
# to end has here. Ctrl-C is for the launcher; where its lock is gone, it has ended meanwhile. What
# is installed wins over files of the launcher's folder, where filters may be. What workers print
# goes to a file: Beam raises their errors too.
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
    """Beam's local runner of worker processes, but for what starts one."""

    def __init__(self) -> None:
        super().__init__(SubprocessSDKEnvironment.from_command_string(_WORKER_COMMAND))


@dataclass(frozen=True)
class Outputs:
    """What a job makes, for people, and how far it is; a thread of its own calls `count`."""

    noun: str
    total: int
    num_found: int
    count: Callable[[], int]
    folder: Folder
    are_kept: bool = True

    def leave(self) -> str:
        """Removes what a killed worker had begun to write, and says what the next job finds."""
        if self.folder.is_local:  # stores hold no such files
            self.folder.remove(find_temporaries(self.folder.list()))
        if not self.are_kept:
            return f"none of the {self.noun} are kept, the same command makes them again"
        return f"{self.count()} of {self.total} {self.noun} are kept, the same command continues"


def pipeline_options(
    workers: int, beam_arguments: Sequence[str], num_tasks: int
) -> PipelineOptions:
    """The user's own arguments, or local worker processes; ValueError for an unknown argument."""
    if not any(argument.startswith("--runner") for argument in beam_arguments):
        chosen, why = this_machine().limit(workers, num_tasks)
        # Of few tasks the default needs no word.
        if why and (workers > num_cores() or chosen < num_tasks):
            _say_once(f"workers: {why}")
        beam_arguments = [*_local_runner(chosen), *beam_arguments]
    else:
        beam_arguments = [NO_STAGE_TIMEOUT, *beam_arguments]  # the last of several counts
    _import_runner(beam_arguments)
    options = PipelineOptions(list(beam_arguments))
    given = options.get_all_options(retain_unknown_options=True).keys()
    if unknown := given - options.get_all_options().keys() - known_options(options):
        endpoint = options.view_as(PortableOptions).job_endpoint
        server = f"neither Beam nor the job server at {endpoint} knows"
        who = server if endpoint else "Beam does not know"
        raise ValueError(f"{who} the option(s) after --: {', '.join(sorted(unknown))}")
    return options


@lru_cache(maxsize=64)
def _say_once(line: str) -> None:
    say(line, is_aside=True)


def _local_runner(workers: int) -> list[str]:
    if workers == 1:
        return ["--runner=FnApiRunner", "--direct_running_mode=in_memory", "--direct_num_workers=1"]
    return [f"--runner={__name__}.LocalRunner", f"--direct_num_workers={workers}"]


def _import_runner(beam_arguments: Sequence[str]) -> None:
    """Imports a runner named by its whole class name, so that its options are known."""
    for argument in beam_arguments:
        module, _, name = argument.removeprefix("--runner=").rpartition(".")
        if argument.startswith("--runner=") and module:
            try:
                importlib.import_module(module)
            except ImportError as error:
                said = f"the runner {name} cannot be imported: {error}; install what it needs"
                raise ValueError(said) from error


def choose_exchange(
    wanted: Literal["auto", "files", "shuffle"], options: PipelineOptions
) -> ExchangeMode:
    """How buckets come together: all runners but Dataflow hold a whole group in memory."""
    if wanted != "auto":
        return wanted
    return "shuffle" if _runner_name(options) == "DataflowRunner" else "files"


def _runner_name(options: PipelineOptions) -> str:
    return str(options.view_as(StandardOptions).runner).rpartition(".")[-1]


def run_graph(
    describe: str,
    build: Callable[[beam.Pipeline], object],
    options: PipelineOptions,
    outputs: Outputs,
) -> None:
    """Builds and runs a graph to its end, and shows what is finished.

    Raises:
        Interrupted: The process was told to end; says what is kept.
        ValueError: A user's fault inside a worker, with the worker's message.
        ChildProcessError: A worker process is gone: killed, or out of memory.
        RuntimeError: Anything else that a worker or the runner raised.
    """
    if outputs.num_found:
        found = f"{outputs.num_found} of {outputs.total} {outputs.noun}"
        say(f"{found} are there from an earlier run; continuing", is_aside=True)
    is_local, job = _runner_name(options) in _OWN_RUNNERS, Job(describe, outputs.folder)
    with tempfile.TemporaryDirectory(prefix="beambert-") as folder:
        lock, log = f"{folder}/lock", Path(folder, "lock.log")
        progress = Progress(describe, outputs, job.state)
        quiet = _quiet_beam() if is_local else contextlib.nullcontext()
        try:
            with quiet, progress.shown(), worker_guard.guard_workers(lock):
                pipeline = beam.Pipeline(options=options)
                build(pipeline)
                gc.freeze()  # no search for garbage among Beam's modules
                job.run(pipeline)
        except KeyboardInterrupt as error:
            raise Interrupted(f"{INTERRUPTED}; {outputs.leave()}") from error
        except ChildProcessError as error:
            raise ChildProcessError(f"{describe}: {error}") from error
        except Exception as error:
            if fault := _find_fault(f"{type(error).__name__}: {error}"):
                raise ValueError(fault) from error
            cause = "a worker failed" if is_local else f"the runner ended the job: {_cause(error)}"
            said = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
            where = _keep_log(outputs.folder, hide(f"{said}{error}"))
            raise RuntimeError(f"{describe}: {cause}; all that was said is {where}") from error


def _cause(error: Exception) -> str:
    if found := _NO_MODULE.search(str(error)):
        return f"a worker says: {found[0]}; {_INSTALL}"
    return first_line(error)


def _keep_log(folder: Folder, said: str) -> str:
    """Keeps what was said beside the outputs until the next run; says where it is."""
    try:
        folder.write(WORKER_LOG, said.encode())
    except OSError:  # perhaps why the job failed
        sys.stderr.write(said)
        return "above"
    return f"in {folder.locate(WORKER_LOG)}"


def _find_fault(error: str) -> str | None:
    """The message of a user's fault that a worker raised, out of Beam's error; None for others."""
    raised = error[: error.rfind(_BEAM_MARK)] if _BEAM_MARK in error else error
    last = list(_RAISED_LINE.finditer(raised))[-1:]
    return raised[last[0].end() :].strip() if last and last[0].group(1) in _USER_FAULTS else None


@contextlib.contextmanager
def _quiet_beam() -> Iterator[None]:
    """Keeps Beam from logging, of workers on this machine, what it raises too."""
    logger = logging.getLogger("apache_beam.runners")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


class Progress:
    """How many outputs are finished: a bar on a terminal, a line a minute in files and pipes."""

    def __init__(self, describe: str, outputs: Outputs, state: Callable[[], str]) -> None:
        self._describe, self._outputs, self._state = describe, outputs, state
        self._num, self._still = outputs.num_found, ""
        self._moved = self._said = time.perf_counter()

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Shows it while this holds, from a thread of its own."""
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
        """Counts and shows what is finished; `now` is a time.perf_counter()."""
        num = self._num
        with contextlib.suppress(OSError):  # a listing that fails once only delays the bar
            num = self._outputs.count()
        if num != self._num:
            self._num, self._moved = num, now
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
        """Of so many minutes without an output; the runner is asked once a minute."""
        if not minutes:
            self._still = ""
        elif not self._still.startswith(said := f"nothing finished for {minutes} min"):
            state = self._state()
            self._still = said + (f", the job is {state}" if state else "")
        return self._still
