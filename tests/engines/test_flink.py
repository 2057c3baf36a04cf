"""Flink with two workers: the root hash of a local build in both exchanges, a worker that is killed, and Ctrl-C."""

import pytest

pytestmark = pytest.mark.engines
ENGINE = "flink"


def test_two_processes_build_what_a_local_build_does(build_and_verify):
    build_and_verify("files", 2)


def test_a_killed_worker_does_not_keep_a_shuffled_build_from_its_end(build_and_verify):
    build_and_verify("shuffle", 2, ended="worker")


def test_ctrl_c_cancels_the_job_and_the_same_command_ends_the_build(build_and_verify):
    build_and_verify("files", 2, ended="launcher")


def test_a_pipeline_of_ones_own_writes_what_it_writes_here(write_and_verify):
    write_and_verify()
