"""Submits a job to a runner, waits for its end, and asks the runner for its state meanwhile.

A runner such as Dataflow goes on with a job even if the launcher, which submitted it, is killed. So
the id of the job is kept in a file beside the job's output. A later launcher asks the runner about
that id, and refuses to start a second job that would write the same files. A job in worker
processes of this machine has no id: it ends with its launcher.
"""

import argparse
import contextlib
import json
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import apache_beam as beam
import grpc
from apache_beam.options import pipeline_options as options_of
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_job_api_pb2 as job_api
from apache_beam.portability.api import beam_job_api_pb2_grpc as job_grpc
from apache_beam.runners.runner import PipelineResult

from pipeline.storage.folder import Folder
from pipeline.storage.secret_values import hide
from pipeline.storage.terminal import say

NO_STAGE_TIMEOUT = "--job_server_timeout=10000000"
"""Keeps Beam from ending a long job: it takes this, in seconds, as a limit for every stage."""
_ANSWER_SECONDS = 20.0
RECORD = "running-job.json"
"""Names the job that writes into a folder. Removed when the launcher has seen the job's end."""
_WAIT_SECONDS = 30.0
_ENDED = {"DONE", "FAILED", "CANCELLED", "UPDATED", "DRAINED"}


class RunningJobOptions(PipelineOptions):  # type: ignore[misc]
    """Beam's options of our own, which a user gives after `--` like the others."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        """Adds the option; Beam calls this."""
        parser.add_argument(
            "--running_job",
            choices=("refuse", "wait"),
            default="refuse",
            help=(
                "What a launcher does if a job of an earlier launcher, which is gone, is still at"
                " work in the same output: refuse to start, or wait for its end and continue."
            ),
        )


@dataclass(frozen=True)
class EarlierJob:
    """The job that a file in a folder names as being at work there.

    Attributes:
        job: The runner's id of the job.
        began: When it was submitted, in ISO format.
    """

    job: str
    began: str

    def describe(self, options: PipelineOptions) -> str:
        """Returns words that name the job in a message, with the page that shows it if known."""
        page = _page(options, self.job)
        return f"job {self.job}{page}, begun at {self.began} by a launcher that is gone,"


def wait_for_running_jobs(folders: Iterable[Folder], beam_arguments: Sequence[str]) -> None:
    """Waits until no job of an earlier launcher is at work in some folders, if the user says so.

    With `--running_job=wait`, a launcher that was lost and started again, perhaps on another
    machine, takes up its work: it uses what the job has finished. This must be called before
    it is decided what is still to be done. Without the option it does nothing, and `Job.run`
    refuses to start.

    Args:
        folders: The folders that jobs of the build write into.
        beam_arguments: The user's arguments for Beam.

    Raises:
        ValueError: A file that names a job is damaged.
    """
    options = PipelineOptions(list(beam_arguments))
    if options.view_as(RunningJobOptions).running_job != "wait":
        return
    for folder in folders:
        earlier = _read_record(folder)
        said = ""
        while earlier is not None:
            state = _ask_state(options, earlier.job)
            is_unknown = (
                not state and not said
            )  # a runner that answered once may fail to for a while
            if is_unknown or state in _ENDED:
                break
            if state and state != said:
                where = earlier.describe(options)
                say(f"{folder}: {where} is {state}: waiting for its end", is_aside=True)
                said = state
            time.sleep(_WAIT_SECONDS)


def _read_record(folder: Folder) -> EarlierJob | None:
    """Reads which job an earlier launcher has begun in a folder and not seen the end of.

    Returns:
        The job; None if there is none.

    Raises:
        ValueError: The file that names it is damaged.
    """
    try:
        record = json.loads(folder.read(RECORD))
        return EarlierJob(str(record["job"]), str(record["began"]))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(
            f"{folder.locate(RECORD)} is damaged: it named a job that may still be at work"
            " here; make sure that none is, and remove it"
        ) from error


class Job:
    """A job that `run` submits to a runner.

    Attributes:
        name: Name of the job, for messages.
        folder: The folder that the job writes to. It also receives the file that names the job.
    """

    def __init__(self, name: str, folder: Folder) -> None:
        self.name = name
        self.folder = folder
        self._result: PipelineResult | None = None  # set when the job is submitted

    def run(self, pipeline: beam.Pipeline) -> None:
        """Submits a pipeline as a job, and waits for the end of the job.

        If this process is told to end meanwhile, the job is cancelled.

        Raises:
            ValueError: A job that an earlier launcher began is still at work in the folder.
        """
        self._look_for_another(pipeline.options)
        result = pipeline.run()
        self._result = result
        job = _job_id(result)
        if job:
            self._say(f"the runner calls this job {job}{_page(pipeline.options, job)}")
            began = datetime.now(UTC).isoformat(timespec="seconds")
            self.folder.write(RECORD, json.dumps({"job": job, "began": began}).encode())
        has_ended = True
        try:
            result.wait_until_finish()
        except KeyboardInterrupt:
            has_ended = not job or self._cancel(result, job)
            raise
        finally:
            if job and has_ended:
                self.folder.remove([RECORD])

    def _look_for_another(self, options: PipelineOptions) -> None:
        """Refuses to go on if a job of an earlier launcher still writes to the folder.

        If the runner does not tell the state of that job, the user is only warned.

        Raises:
            ValueError: The job is still at work, or the file that names it is damaged.
        """
        earlier = _read_record(self.folder)
        if earlier is None:
            return
        state = _ask_state(options, earlier.job)
        if state in _ENDED:
            return
        where = earlier.describe(options)
        if state:
            raise ValueError(
                f"{self.folder}: {where} is {state} and writes here; cancel it where the runner"
                " shows it, or give --running_job=wait after --, which waits for its end; then"
                " run this command again"
            )
        unknown = "this runner does not know it; cancel it where it runs"
        self._say(f"{where} may still be at work here: {unknown}")

    def state(self) -> str:
        """Returns the state of the job in the runner's words, such as "RUNNING".

        For a local job, and before a job is submitted, the result is empty. If the runner raises an
        error, it is "does not answer".
        """
        if self._result is None or not _job_id(self._result):
            return ""
        with contextlib.suppress(Exception):  # each runner has its own errors
            return str(self._result.state)
        return "does not answer"

    def _cancel(self, result: PipelineResult, job: str) -> bool:
        """Cancels the job; returns whether the runner accepted that."""
        try:
            result.cancel()
        except Exception as error:  # noqa: BLE001 - each runner has its own
            self._say(
                f"job {job} could not be cancelled ({first_line(error)}) and may go on: cancel it"
                " where the runner shows it"
            )
            return False
        self._say(f"job {job} was told to end")
        return True

    def _say(self, message: str) -> None:
        """Prints a message about the job."""
        say(f"{self.name}: {message}", is_aside=True)


def known_options(options: PipelineOptions) -> set[str]:
    """Returns the names of the options that the job server knows; empty if no server is named.

    Raises:
        ValueError: Nothing answers at the server's address, or what answers is no job server.
    """
    endpoint = _endpoint(options)
    if not endpoint:
        return set()
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
    except OSError as error:
        raise ValueError(
            f"no job server answers at --job_endpoint={endpoint} ({error}); start it, or give the"
            " address it listens at"
        ) from error
    try:
        with grpc.insecure_channel(endpoint) as channel:
            ask = job_grpc.JobServiceStub(channel).DescribePipelineOptions
            described = ask(job_api.DescribePipelineOptionsRequest(), timeout=_ANSWER_SECONDS)
    except grpc.RpcError as error:
        raise ValueError(
            f"what listens at --job_endpoint={endpoint} answers not as a Beam job server does"
            f" ({first_line(error)}); give the address of its --job-port"
        ) from error
    return {option.name for option in described.options}


def _endpoint(options: PipelineOptions) -> str:
    """Returns the job server's HOST:PORT; empty if none is named, so that Beam starts its own."""
    endpoint = str(options.view_as(options_of.PortableOptions).job_endpoint or "")
    return endpoint if endpoint.rpartition(":")[2].isdigit() else ""


def _ask_state(options: PipelineOptions, job: str) -> str:
    """Asks the runner for the state of a job.

    Args:
        options: Beam's options, which name a job server or a project on Google Cloud.
        job: The runner's id of the job.

    Returns:
        The state in the runner's words, such as "RUNNING". Empty if the runner does not know the
            job, does not answer, or is neither a job server nor Dataflow.
    """
    endpoint = _endpoint(options)
    if endpoint:
        with contextlib.suppress(grpc.RpcError), grpc.insecure_channel(endpoint) as channel:
            request = job_api.GetJobStateRequest(job_id=job)
            answer = job_grpc.JobServiceStub(channel).GetState(request, timeout=_ANSWER_SECONDS)
            return str(job_api.JobState.Enum.Name(answer.state))
    elif options.view_as(options_of.GoogleCloudOptions).project:
        with contextlib.suppress(Exception):  # the client has many errors of its own
            from apache_beam.runners.dataflow.internal.apiclient import DataflowApplicationClient

            answer = DataflowApplicationClient(options).get_job(job)
            return str(answer.currentState).removeprefix("JOB_STATE_")
    return ""


def first_line(error: Exception) -> str:
    """Returns the first line of a runner's error, without secrets.

    For an error of gRPC this is the server's message, which is in `details()`, and not the text
    that gRPC adds to it.
    """
    details = getattr(error, "details", None)
    message = str(details() if callable(details) else error).strip()
    return hide(message.partition("\n")[0].strip() or type(error).__name__)


def _job_id(result: PipelineResult) -> str:
    """Returns the runner's id of a job; empty for a local job.

    It is the attribute `job_id` or `_job_id` of the result, depending on the runner. With Dataflow
    it is a method.
    """
    job_id = getattr(result, "job_id", None) or getattr(result, "_job_id", "")
    return str(job_id() if callable(job_id) else job_id)


def _page(options: PipelineOptions, job: str) -> str:
    """Returns ": " and the address of a job's page on Dataflow; empty on any other runner.

    The addresses of other runners' pages are not known here.
    """
    cloud = options.view_as(options_of.GoogleCloudOptions)
    if not (cloud.project and cloud.region):
        return ""
    page = f"dataflow/jobs/{cloud.region}/{job}?project={cloud.project}"
    return f": https://console.cloud.google.com/{page}"
