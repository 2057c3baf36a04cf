"""Beam's worker pool for several task managers of one machine, which number their workers alike.

The pool knows workers by that number only: told to stop one, it would stop another task manager's.
So it stops none; each ends with its task manager, or with the pool.
"""

import sys
from typing import Any

from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.worker import worker_pool_main


def _stop_none(*_: Any) -> Any:
    return beam_fn_api_pb2.StopWorkerResponse()


if __name__ == "__main__":
    worker_pool_main.BeamFnExternalWorkerPoolServicer.StopWorker = _stop_none
    worker_pool_main.main(sys.argv)
