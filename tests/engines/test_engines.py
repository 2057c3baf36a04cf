"""Each engine gives the root hash of a local build, also where a worker is killed or Ctrl-C comes.

Beam's own job server and Prism have one worker process, the others two. A pipeline of one's own
exchanges by files, undisturbed.
"""

import pytest

pytestmark = pytest.mark.engines

BUILDS = [
    ("beam", "shuffle", 1),
    ("prism", "shuffle", 1),
    ("dask", "files", 2),
    ("dask", "shuffle", 2, "worker"),
    ("flink", "shuffle", 2, "launcher", "worker"),
    ("spark", "shuffle", 2, "worker"),
]


@pytest.mark.parametrize(
    ("cluster", "how"),
    [pytest.param(name, how, id="-".join(map(str, [name, *how]))) for name, *how in BUILDS],
    indirect=["cluster"],
)
def test_an_engine_builds_what_a_local_build_does(how, build_and_verify):
    build_and_verify(*how)


@pytest.mark.parametrize("cluster", ["beam", "prism", "flink", "spark"], indirect=True)
def test_a_pipeline_of_ones_own_writes_what_it_writes_here(write_and_verify):
    write_and_verify()
