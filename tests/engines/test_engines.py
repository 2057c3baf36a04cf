"""Each engine gives the root hash of a local build, also where a worker is killed or Ctrl-C comes.

Beam's own job server and Prism have one worker process, the others two.
"""

import pytest

pytestmark = pytest.mark.engines

BUILDS = [
    ("beam", "files", 1, ""),
    ("beam", "shuffle", 1, ""),
    ("prism", "files", 1, ""),
    ("prism", "shuffle", 1, ""),
    ("dask", "files", 2, ""),
    ("dask", "shuffle", 2, "worker"),
    ("flink", "files", 2, ""),
    ("flink", "shuffle", 2, "worker"),
    ("flink", "files", 2, "launcher"),
    ("spark", "files", 2, ""),
    ("spark", "shuffle", 2, "worker"),
]


@pytest.mark.parametrize(("cluster", "exchange", "num", "ended"), BUILDS, indirect=["cluster"])
def test_an_engine_builds_what_a_local_build_does(exchange, num, ended, build_and_verify):
    build_and_verify(exchange, num, ended)


@pytest.mark.parametrize("cluster", ["beam", "prism", "flink", "spark"], indirect=True)
def test_a_pipeline_of_ones_own_writes_what_it_writes_here(write_and_verify):
    write_and_verify()
