"""Beam's local runner with worker processes from the fork server instead of fresh interpreters.

As FnApiRunner with `--direct_running_mode=multi_processing`, whose workers a shell starts: the same worker, the same
connections, the same number of them. May import: Beam, pipeline.forked_workers.
"""

import os
import threading
from typing import Any

from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.runners.portability.fn_api_runner.worker_handlers import GrpcWorkerHandler, WorkerHandler
from apache_beam.transforms.environments import Environment, python_sdk_capabilities

from pipeline.forked_workers import fork_server

_URN = "beambert:env:forked:v1"


class ForkedRunner(FnApiRunner):  # type: ignore[misc]
    """`--runner=pipeline.forked_runner.ForkedRunner --direct_num_workers=N`."""

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
        self._thread = threading.Thread(name="run_worker", target=self._run)

    def start_worker(self) -> None:
        fork_server()
        self._thread.start()

    def stop_worker(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        own = {"CONTROL_API_SERVICE_DESCRIPTOR": f'url: "{self.control_address}"', "WORKER_ID": self.worker_id}
        code = fork_server().run_worker(os.environ | own)
        if code:  # in the words of Beam's own, which pipeline.worker_guard knows
            raise RuntimeError(f"Worker subprocess exited with return code {code}")
