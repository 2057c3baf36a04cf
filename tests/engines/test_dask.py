"""Dask with two workers: the root hash of a local build in both exchanges, and a worker that is killed."""

import pytest

pytestmark = pytest.mark.engines
ENGINE = "dask"


def test_two_processes_build_what_a_local_build_does(build_and_verify):
    build_and_verify("files", 2)


def test_a_killed_worker_does_not_keep_a_shuffled_build_from_its_end(build_and_verify):
    build_and_verify("shuffle", 2, ended="worker")
