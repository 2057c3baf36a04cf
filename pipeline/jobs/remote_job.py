"""A job on a cluster or a service, as the launcher meets it: its name, page and state, its last words, its cancelling.

Of a job in this machine's own processes all of this is empty.
"""

import contextlib
import socket
import sys

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, PortableOptions
from apache_beam.runners.runner import PipelineResult
from tqdm import tqdm

from pipeline.storage.secret_values import hide

NO_STAGE_TIMEOUT = "--job_server_timeout=10000000"
"""Beam takes it, in seconds, as the longest time of any stage, and 300 as its default."""
_ANSWER_SECONDS = 20.0


class Job:
    """One job, from before it is submitted to its end.

    Attributes:
        describe: What its messages begin with.
    """

    def __init__(self, describe: str) -> None:
        self.describe = describe
        self._result: PipelineResult | None = None

    def run(self, pipeline: beam.Pipeline) -> None:
        """Submits a pipeline and waits for its end; the job is cancelled where this process is told to end."""
        self._result = result = pipeline.run()
        job = _job_id(result)
        if job:
            self._say(f"the runner calls this job {job}{_page(pipeline.options, job)}")
        try:
            result.wait_until_finish()
        except KeyboardInterrupt:
            if job:
                self._cancel(result, job)
            raise

    def state(self) -> str:
        """What the runner says of the job now, such as RUNNING; empty where it says nothing."""
        if self._result is None or not _job_id(self._result):
            return ""
        with contextlib.suppress(Exception):  # each runner has its own errors, and the job's end will tell
            return str(self._result.state)
        return "does not answer"

    def _cancel(self, result: PipelineResult, job: str) -> None:
        try:
            result.cancel()
        except Exception as error:  # noqa: BLE001 - each runner has its own; a person must hear of a job that goes on
            self._say(
                f"job {job} could not be cancelled ({first_line(error)}) and may go on: cancel it where the runner"
                " shows it"
            )
        else:
            self._say(f"job {job} was told to end")

    def _say(self, said: str) -> None:
        tqdm.write(f"{self.describe}: {said}", file=sys.stderr)


def require_job_server(options: PipelineOptions) -> None:
    """Holds the address of a job server to one that answers: Beam would wait as long as it lets a stage take.

    Raises:
        ValueError: Nobody answers there.
    """
    endpoint = str(options.view_as(PortableOptions).job_endpoint or "")
    host, _, port = endpoint.rpartition(":")
    if not port.isdigit():
        return  # none is named, or Beam starts its own
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
    except OSError as error:
        raise ValueError(
            f"no job server answers at --job_endpoint={endpoint} ({error}); start it, or give the address it listens at"
        ) from error


def first_line(error: Exception) -> str:
    """The first line of what a runner said; an error of gRPC keeps it apart from its own words."""
    details = getattr(error, "details", None)
    said = str(details() if callable(details) else error)
    return hide(next((line.strip() for line in said.splitlines() if line.strip()), type(error).__name__))


def _job_id(result: PipelineResult) -> str:
    """The runner's name of a job: a method on Dataflow, an attribute on portable runners."""
    found = getattr(result, "job_id", None) or getattr(result, "_job_id", "")
    return str(found() if callable(found) else found)


def _page(options: PipelineOptions, job: str) -> str:
    """Where Dataflow shows a job; the other runners' pages have addresses that only their users know."""
    cloud = options.view_as(GoogleCloudOptions)
    if not (cloud.project and cloud.region):
        return ""
    return f": https://console.cloud.google.com/dataflow/jobs/{cloud.region}/{job}?project={cloud.project}"
