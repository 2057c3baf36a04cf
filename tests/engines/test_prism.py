"""Prism: the root hash of a local build in both exchanges; it has one worker process."""

import pytest

pytestmark = pytest.mark.engines
ENGINE = "prism"


@pytest.mark.parametrize("exchange", ["files", "shuffle"])
def test_prism_builds_what_a_local_build_does(exchange, build_and_verify):
    build_and_verify(exchange, 1)


def test_a_pipeline_of_ones_own_writes_what_it_writes_here(write_and_verify):
    write_and_verify()
