"""Jobs of other runners, as a person at the launcher meets them."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import apache_beam as beam
import grpc
import pytest
from apache_beam.options.pipeline_options import PortableOptions
from apache_beam.portability.api import beam_job_api_pb2 as job_api
from apache_beam.portability.api import beam_job_api_pb2_grpc as job_grpc
from apache_beam.runners.runner import PipelineResult, PipelineRunner
from tqdm import tqdm

from pipeline.interrupts import Interrupted
from pipeline.jobs import remote_job
from pipeline.jobs.remote_job import RECORD, Job, wait_for_running_jobs
from pipeline.jobs.run_beam import WORKER_LOG, Outputs, Progress, pipeline_options, run_graph
from pipeline.storage.folder import Folder


class RemoteResult(PipelineResult):
    """A job elsewhere that ends with an error, and notes whether it was cancelled."""

    _job_id = "job-7"

    def __init__(self, error, cancel_error):
        super().__init__("RUNNING")
        self.error, self.cancel_error, self.num_cancelled = error, cancel_error, 0

    def wait_until_finish(self, *_):
        raise self.error

    def cancel(self):
        self.num_cancelled += 1
        if self.cancel_error:
            raise self.cancel_error


class JobServer(job_grpc.JobServiceServicer):
    """A job server that knows an option of its own, and the state of one job."""

    state = job_api.JobState.RUNNING

    def DescribePipelineOptions(self, *_):  # noqa: N802 - the service's name
        kind = job_api.PipelineOptionType.BOOLEAN
        option = job_api.PipelineOptionDescriptor(name="object_reuse", type=kind)
        return job_api.DescribePipelineOptionsResponse(options=[option])

    def GetState(self, request, context):  # noqa: N802 - the service's name
        if request.job_id != "job-6":
            context.abort(grpc.StatusCode.NOT_FOUND, "no such job")
        return job_api.JobStateEvent(state=self.state)


@pytest.fixture
def job_server():
    """The server and the option that names its address."""
    service, server = JobServer(), grpc.server(ThreadPoolExecutor(1))
    job_grpc.add_JobServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield service, f"--job_endpoint=127.0.0.1:{port}"
    server.stop(None).wait()


def options_of(*arguments):
    return pipeline_options(2, ["--runner=PortableRunner", *arguments], 4)


def run(tmp_path, monkeypatch, error, cancel_error=None, *arguments):
    """Runs a graph on a runner elsewhere; returns its result and what run_graph raised."""
    result = RemoteResult(error, cancel_error)
    monkeypatch.setattr(PipelineRunner, "run_pipeline", lambda *_: result)
    monkeypatch.setattr("apache_beam.pipeline.create_runner", lambda _: PipelineRunner())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    outputs = Outputs("shards", 4, 0, lambda: 1, Folder(str(tmp_path)))
    options = options_of(*arguments)
    with pytest.raises((RuntimeError, ValueError, Interrupted)) as raised:
        run_graph("shards", lambda pipeline: pipeline | beam.Create([1]), options, outputs)
    return result, str(raised.value)


def test_ctrl_c_cancels_the_job_and_names_it(tmp_path, monkeypatch, capfd):
    result, message = run(tmp_path, monkeypatch, KeyboardInterrupt())
    assert result.num_cancelled == 1
    assert "1 of 4 shards are kept" in message
    assert "shards: the runner calls this job job-7\n" in (said := capfd.readouterr().err)
    assert "shards: job job-7 was told to end" in said
    assert not (tmp_path / RECORD).exists()


def test_a_job_that_cannot_be_cancelled_is_named(tmp_path, monkeypatch, capfd):
    run(tmp_path, monkeypatch, KeyboardInterrupt(), ConnectionError("nobody there"))
    said = capfd.readouterr().err
    assert "job job-7 could not be cancelled (nobody there) and may go on" in said
    assert json.loads((tmp_path / RECORD).read_text())["job"] == "job-7"


def test_a_failed_job_shows_what_its_runner_said(tmp_path, monkeypatch):
    lost = "TaskManager with id tm-1 is no longer reachable."
    words = f"Pipeline job-7 failed in state FAILED: {lost}\n  at java"
    result, message = run(tmp_path, monkeypatch, RuntimeError(words))
    assert result.num_cancelled == 0
    assert lost in message
    assert f"{tmp_path / WORKER_LOG}" in message
    assert words in (tmp_path / WORKER_LOG).read_text()


def test_workers_without_the_launchers_package_are_told_from_other_faults(tmp_path, monkeypatch):
    attribute = "Can't get attribute 'f' on <module 'pipeline.jobs.broadcast'"
    for said in ("No module named 'pipeline'", attribute):
        words = f"Pipeline job-7 failed in state FAILED: java: SDK\n  Error: {said} from x\n"
        _, message = run(tmp_path, monkeypatch, RuntimeError(words))
        assert f"a worker says: {said}" in message
        assert "install the launcher's wheel with [pipeline] where workers run" in message


def test_a_job_server_that_is_not_there_is_refused_at_once(tmp_path):
    with socket.socket() as held:  # bound, and nobody listens
        held.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"no job server answers at --job_endpoint={endpoint}"):
            options_of(f"--job_endpoint={endpoint}")


def test_what_is_no_job_server_is_named():
    server = grpc.server(ThreadPoolExecutor(1))
    endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    with pytest.raises(ValueError, match=f"{endpoint} answers not as a Beam job server does"):
        options_of(f"--job_endpoint={endpoint}")
    server.stop(None).wait()


def test_a_job_servers_own_options_pass_and_others_are_refused(job_server):
    given, endpoint = "--object_reuse=true", job_server[1]
    assert options_of(given, endpoint).get_all_options(retain_unknown_options=True)["object_reuse"]
    said = r"neither Beam nor the job server at 127.0.0.1:\d+ knows .*: no_such"
    with pytest.raises(ValueError, match=said):
        options_of(given, endpoint, "--no_such=1")
    with pytest.raises(ValueError, match=r"does not know the option\(s\) after --: object_reuse"):
        options_of(given)


def test_a_job_of_a_launcher_that_is_gone_is_seen(job_server, tmp_path, monkeypatch, capfd):
    service, endpoint = job_server
    record = json.dumps({"job": "job-6", "began": "2026-01-02T03:04:05+00:00"})
    (tmp_path / RECORD).write_text(record)

    def said():
        return run(tmp_path, monkeypatch, RuntimeError("the runner's words"), None, endpoint)[1]

    began = "begun at 2026-01-02T03:04:05+00:00 by a launcher that is gone"
    assert f"job job-6, {began}, is RUNNING" in said()
    assert (tmp_path / RECORD).read_text() == record
    service.state = job_api.JobState.FAILED
    assert "the runner's words" in said()
    assert not (tmp_path / RECORD).exists()
    (tmp_path / RECORD).write_text(record.replace("job-6", "job-5"))
    assert "the runner's words" in said()
    unknown = "may still be at work here: this runner does not know it"
    assert f"job job-5, {began}, {unknown}" in capfd.readouterr().err
    (tmp_path / RECORD).write_text("{")
    assert f"{RECORD} is damaged" in said()


def test_a_launcher_that_is_started_again_waits_for_the_job_of_the_lost_one(
    job_server, tmp_path, monkeypatch, capfd
):
    service, endpoint = job_server
    record = json.dumps({"job": "job-6", "began": "2026-01-02T03:04:05+00:00"})
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / RECORD).write_text(record)
    folders = [Folder(str(tmp_path / name)) for name in ("_words", "tokens")]
    states = [job_api.JobState.RUNNING, job_api.JobState.CANCELLING, job_api.JobState.DONE]
    waits = []

    def pause(seconds):
        waits.append(seconds)
        service.state = states[len(waits)]

    monkeypatch.setattr(remote_job.time, "sleep", pause)
    wait_for_running_jobs(folders, [endpoint])
    assert waits == [], "only if the user says so"
    given = ["--runner=PortableRunner", "--running_job=wait", endpoint]
    wait_for_running_jobs(folders, given)
    assert waits == [30.0, 30.0]
    said = capfd.readouterr().err.splitlines()
    where = f"{tmp_path}/tokens: job job-6, begun at 2026-01-02T03:04:05+00:00"
    ends = [line.rpartition(" is ")[2] for line in said if line.startswith(where)]
    assert ends == ["RUNNING: waiting for its end", "CANCELLING: waiting for its end"]
    (tmp_path / "tokens" / RECORD).write_text(record.replace("job-6", "job-5"))
    wait_for_running_jobs(folders, given)
    assert len(waits) == 2, "no job that the runner knows"
    assert options_of(*given[1:]).get_all_options()["running_job"] == "wait"


def test_a_runner_that_fails_to_answer_for_a_while_is_asked_again(tmp_path, monkeypatch):
    (tmp_path / RECORD).write_text(json.dumps({"job": "job-6", "began": "yesterday"}))
    states = ["RUNNING", "", "", "DONE"]
    monkeypatch.setattr(remote_job, "_ask_state", lambda *_: states.pop(0))
    monkeypatch.setattr(remote_job.time, "sleep", lambda _: None)
    wait_for_running_jobs([Folder(str(tmp_path))], ["--running_job=wait"])
    assert states == []


def test_dataflows_page_of_a_job_is_printed(tmp_path, monkeypatch, capfd):
    place = ("--runner=DataflowRunner", "--project=p-1", "--region=europe-west4")
    run(tmp_path, monkeypatch, RuntimeError(), None, *place)
    said = "https://console.cloud.google.com/dataflow/jobs/europe-west4/job-7?project=p-1"
    assert f"shards: the runner calls this job job-7: {said}\n" in capfd.readouterr().err


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_stands_still_is_said_with_the_jobs_state(is_terminal, tmp_path, capsys):
    """On a terminal beside the bar; in a file, which takes no bar, by a line a minute."""
    num, job = [1], Job("shards", Folder(str(tmp_path)))
    outputs = Outputs("files", 4, 1, lambda: num[0], Folder(str(tmp_path)))
    progress, said = Progress("shards", outputs, job.state), []

    def look(seconds):
        progress.look(bar, began + seconds)
        shown = str(bar) if is_terminal else capsys.readouterr().err.strip()
        said.append(shown[shown.find("nothing") :].rstrip("]") if "nothing" in shown else "")

    with tqdm(total=4, initial=1, disable=not is_terminal) as bar:
        began = progress._moved
        look(59)
        look(190)
        job._result = RemoteResult(None, None)
        look(251)
        num[0] = 2
        look(255)
    still = ["nothing finished for 3 min", "nothing finished for 4 min, the job is RUNNING"]
    assert said == ["", *still, ""]


def test_stages_may_take_longer_than_beams_five_minutes():
    for given, timeout in (([], 10_000_000), (["--job_server_timeout=60"], 60)):
        assert options_of(*given).view_as(PortableOptions).job_server_timeout == timeout
