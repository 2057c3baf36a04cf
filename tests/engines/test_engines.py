"""Each engine gives the root hash of a local build, also where a worker is killed or Ctrl-C comes.

Prism has one worker process, the others two. A pipeline of one's own exchanges by files,
undisturbed, as does a build of words as they stand; the engine that it ran on goes on with the
build. scripts/soak/engines.py builds on Spark and Beam's own job server too, and tries every
accident.
"""

import pytest

pytestmark = pytest.mark.engines

RUNS = [
    ("prism", "own"),
    ("prism", "words"),
    ("prism", "shuffle", 1, "launcher"),
    ("dask", "files", 2, "worker"),
    ("flink", "shuffle", 2, "worker"),
    ("flink", "words"),
]


@pytest.mark.parametrize(
    ("cluster", "how"),
    [pytest.param(name, how, id="-".join(map(str, [name, *how]))) for name, *how in RUNS],
    indirect=["cluster"],
)
def test_an_engine_makes_what_is_made_here(how, build_and_verify, build_words, write_and_verify):
    if how == ["own"]:
        write_and_verify()
    elif how == ["words"]:
        build_words()
    else:
        build_and_verify(*how)
