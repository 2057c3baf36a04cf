"""A job on a cluster or a service as the launcher meets it: its page, state, end and last words.

Of a job in this machine's own processes all of this is empty.
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
"""Beam takes it, in seconds, as the longest time of any stage."""
_ANSWER_SECONDS = 20.0
RECORD = "running-job.json"
"""A file beside what a job elsewhere makes, until the launcher has seen its end."""
_ENDED = {"DONE", "FAILED", "CANCELLED", "UPDATED", "DRAINED"}


class Job:
    """One job, from before it is submitted to its end."""

    def __init__(self, describe: str, folder: Folder) -> None:
        self.describe, self.folder = describe, folder
        self._result: PipelineResult | None = None

    def run(self, pipeline: beam.Pipeline) -> None:
        """Submits a pipeline and waits for its end; cancels it where this process is told to end.

        Raises:
            ValueError: The job of a launcher that is gone is still at work in the folder.
        """
        self._look_for_another(pipeline.options)
        self._result = result = pipeline.run()
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
        """A launcher that was killed leaves its job at work, and its record."""
        try:
            found = json.loads(self.folder.read(RECORD))
            job, began = str(found["job"]), str(found["began"])
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
        """What the runner says of the job now, such as RUNNING; empty where it says nothing."""
        if self._result is None or not _job_id(self._result):
            return ""
        with contextlib.suppress(Exception):  # each runner has its own errors
            return str(self._result.state)
        return "does not answer"

    def _cancel(self, result: PipelineResult, job: str) -> bool:
        """Whether the runner took it."""
        try:
            result.cancel()
        except Exception as error:  # noqa: BLE001 - each runner has its own
            failed = f"job {job} could not be cancelled ({first_line(error)}) and may go on"
            self._say(f"{failed}: cancel it where the runner shows it")
            return False
        self._say(f"job {job} was told to end")
        return True

    def _say(self, said: str) -> None:
        say(f"{self.describe}: {said}", is_aside=True)


def known_options(options: PipelineOptions) -> set[str]:
    """Names of the options of the job server, if one is named; ValueError if it does not answer."""
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
    """HOST:PORT of the job server; empty where none is named, or Beam starts its own."""
    endpoint = str(options.view_as(options_of.PortableOptions).job_endpoint or "")
    return endpoint if endpoint.rpartition(":")[2].isdigit() else ""


def _ask_state(options: PipelineOptions, job: str) -> str:
    """The state of another launcher's job; empty where the runner does not know it."""
    if endpoint := _endpoint(options):
        with contextlib.suppress(grpc.RpcError), grpc.insecure_channel(endpoint) as channel:
            asked = job_api.GetJobStateRequest(job_id=job)
            answer = job_grpc.JobServiceStub(channel).GetState(asked, timeout=_ANSWER_SECONDS)
            return str(job_api.JobState.Enum.Name(answer.state))
    elif options.view_as(options_of.GoogleCloudOptions).project:
        with contextlib.suppress(Exception):  # the client has many errors of its own
            from apache_beam.runners.dataflow.internal.apiclient import DataflowApplicationClient

            found = DataflowApplicationClient(options).get_job(job)
            return str(found.currentState).removeprefix("JOB_STATE_")
    return ""


def first_line(error: Exception) -> str:
    """The first line of what a runner said; an error of gRPC keeps it apart from its own words."""
    details = getattr(error, "details", None)
    said = str(details() if callable(details) else error).strip()
    return hide(said.partition("\n")[0].strip() or type(error).__name__)


def _job_id(result: PipelineResult) -> str:
    """The runner's name of a job: a method on Dataflow, an attribute on portable runners."""
    found = getattr(result, "job_id", None) or getattr(result, "_job_id", "")
    return str(found() if callable(found) else found)


def _page(options: PipelineOptions, job: str) -> str:
    """Where Dataflow shows a job; only their users know the addresses of other runners' pages."""
    cloud = options.view_as(options_of.GoogleCloudOptions)
    if not (cloud.project and cloud.region):
        return ""
    page = f"dataflow/jobs/{cloud.region}/{job}?project={cloud.project}"
    return f": https://console.cloud.google.com/{page}"
