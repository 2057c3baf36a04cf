"""Submits a job to a runner, waits for its end, and asks the runner for its state meanwhile.

A runner such as Dataflow goes on with a job even if the launcher, which submitted it, is killed. So
the id of the job is kept in a file beside the job's output. A later launcher asks the runner about
that id, and refuses to start a second job that would write the same files. A job in worker
processes of this machine has no id: it ends with its launcher.
"""

import contextlib
import json
import socket
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
_ENDED = {"DONE", "FAILED", "CANCELLED", "UPDATED", "DRAINED"}


class Job:
    """A job that `run` submits to a runner.

    Attributes:
        describe: Name of the job, for messages.
        folder: The folder that the job writes to. It also receives the file that names the job.
    """

    def __init__(self, describe: str, folder: Folder) -> None:
        self.describe = describe
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

        A launcher that was killed leaves a file with the id of its job. The runner is asked for the
        state of that job. If it does not tell the state, the user is only warned.

        Raises:
            ValueError: The job is still at work, or the file is damaged.
        """
        try:
            record = json.loads(self.folder.read(RECORD))
            job = str(record["job"])
            began = str(record["began"])
        except FileNotFoundError:
            return
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(
                f"{self.folder.locate(RECORD)} is damaged: it named a job that may still be at work"
                " here; make sure that none is, and remove it"
            ) from error
        state = _ask_state(options, job)
        if state in _ENDED:
            return
        where = f"job {job}{_page(options, job)}, begun at {began} by a launcher that is gone,"
        if state:
            raise ValueError(
                f"{self.folder}: {where} is {state} and writes here; cancel it where the runner"
                " shows it, or wait until it has ended, then run this command again"
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
        say(f"{self.describe}: {message}", is_aside=True)


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
