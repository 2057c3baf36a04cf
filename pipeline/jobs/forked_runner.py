"""Beam's local runner with worker processes from the fork server instead of fresh interpreters.

As FnApiRunner with `--direct_running_mode=multi_processing`, whose workers a shell starts: the same worker, the same
connections, the same number of them.
"""

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.runners.portability.fn_api_runner.worker_handlers import GrpcWorkerHandler, WorkerHandler
from apache_beam.transforms.environments import Environment, python_sdk_capabilities

from pipeline.jobs.forked_workers import ForkServer, fork_server

_URN = "beambert:env:forked:v1"


class ForkedRunner(FnApiRunner):  # type: ignore[misc]
    """`--runner=pipeline.jobs.forked_runner.ForkedRunner --direct_num_workers=N`."""

    def __init__(self) -> None:
        super().__init__(default_environment=ForkedEnvironment(capabilities=python_sdk_capabilities()))


@Environment.register_urn(_URN, None)
class ForkedEnvironment(Environment):  # type: ignore[misc]
    """Says in a graph where its functions run."""

    def to_runner_api_parameter(self, _context: Any) -> tuple[str, bytes]:
        """The name and no payload."""
        return _URN, b""

    @staticmethod
    def from_runner_api_parameter(
        _payload: bytes, capabilities: Any, artifacts: Any, resource_hints: Any, _context: Any
    ) -> "ForkedEnvironment":
        """Back from a graph."""
        return ForkedEnvironment(capabilities, artifacts, resource_hints)


@WorkerHandler.register_environment(_URN, None)
class _ForkedWorkerHandler(GrpcWorkerHandler):  # type: ignore[misc]
    def __init__(self, _payload: bytes, state: Any, provision_info: Any, grpc_server: Any) -> None:
        super().__init__(state, provision_info, grpc_server)
        self._thread = threading.Thread()
        self._is_told = threading.Event()

    def start_worker(self) -> None:
        own = {"CONTROL_API_SERVICE_DESCRIPTOR": f'url: "{self.control_address}"', "WORKER_ID": self.worker_id}
        arguments = fork_server(), os.environ | own, str(Path.cwd()), self._is_told
        self._thread = threading.Thread(name="run_worker", target=_run_worker, args=arguments)
        self._thread.start()

    def close(self) -> None:
        # Beam closes the control first, and takes it for an error that the data of a quickly ended worker break off.
        self._is_told.set()
        try:
            self.data_conn.close()
        finally:
            self.control_conn.close()
        self.stop_worker()

    def stop_worker(self) -> None:
        self._thread.join()


def _run_worker(server: ForkServer, environment: Mapping[str, str], folder: str, is_told: threading.Event) -> None:
    """Raises, in the words of Beam's own thread, which pipeline.jobs.worker_guard knows, where a worker ended badly.

    Beam itself would wait for ever for a worker that ended before it was told to.
    """
    code = server.run_worker(environment, folder)
    if not is_told.is_set():
        raise RuntimeError(f"Worker subprocess exited with return code {code} too early")
    if code:
        raise RuntimeError(f"Worker subprocess exited with return code {code}")
