"""`trainer doctor`: what it finds on nodes that are unfit, and that it names them.

Run as a program, this file is one rank of which rank 1 is unfit: `test_doctor.py doctor ...`.
"""

import dataclasses
import os
import sys

import numpy as np
import pytest

from tests.datasets import write_dataset
from tests.trainer.tiny_dataset import random_block, write_tiny_dataset
from tests.trainer.tiny_run import TINY
from tests.trainer.two_ranks import run_ranks
from trainer.cli import main
from trainer.model.config import ModelSettings
from trainer.preflight import doctor
from trainer.preflight.doctor import (
    Findings,
    describe_precision,
    find_wrong,
    format_findings,
    look_around,
)
from trainer.preflight.settings import DoctorSettings
from trainer.process.precision import Device
from trainer.settings import CheckpointSettings, Phase

WELL = Findings(0, "node0", "NVIDIA H200", {"torch": "2.13.0"}, ("ab",))
RANKS = [dataclasses.replace(WELL, rank=rank, host=f"node{rank // 2}") for rank in range(8)]


def test_well_nodes_are_well():
    assert list(find_wrong(RANKS)) == []
    printed = format_findings(RANKS, [], 0.0125)
    assert printed[0] == "rank 0: node0, NVIDIA H200"
    assert printed[-3:] == [
        "software: torch 2.13.0", "all-reduce: 12.5 ms", "all is well on 8 rank(s) of 4 node(s)"
    ]  # fmt: skip


def test_the_precision_of_a_new_run_is_said_where_the_device_decides():
    gpu = Device("NVIDIA H200", has_bf16=True, can_compile=True)
    [line] = describe_precision(DoctorSettings(), gpu)
    assert line.startswith("NVIDIA H200: training in bf16, compiled; --precision fp32")
    assert list(describe_precision(DoctorSettings(precision="fp32", compile=False), gpu)) == []
    assert list(describe_precision(DoctorSettings(), Device("this CPU"))) == []
    slow = Device("this CPU", bf16_slowdown=50.0)
    [line] = describe_precision(DoctorSettings(precision="bf16"), slow)
    assert line.endswith("50 times as slowly in bf16 as in fp32; --precision fp32 is faster")


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"software": {"torch": "2.12.0"}}, "torch is 2.12.0; 7 of 8 ranks have 2.13.0"),
        ({"software": WELL.software | {"nccl": "2.1"}}, "nccl is 2.1; 7 of 8 ranks have none"),
        ({"device": "NVIDIA A100"}, "device is NVIDIA A100; 7 of 8 ranks have NVIDIA H200"),
        ({"data": ("cd",)}, "root hash of the data is cd; 7 of 8 ranks have ab"),
        ({"data": (), "faults": ("cannot read the data",)}, "cannot read the data"),
    ],
)
def test_the_rank_that_is_unfit_is_named(changed, what):
    found = [dataclasses.replace(each, **changed) if each.rank == 5 else each for each in RANKS]
    assert list(find_wrong(found)) == [f"rank 5 (node2): {what}"]


@pytest.mark.engines
def test_the_url_is_written_and_left_as_it_was(ranks, bucket, tmp_path):
    def faults(url, **options):
        places = {"checkpoint": CheckpointSettings(url=url), "output": str(tmp_path)}
        return look_around(DoctorSettings(**places, **options), ranks).faults

    assert faults(None) == ()
    assert faults("memory://bucket/run") == ()
    assert not bucket.store
    (tmp_path / "file").touch()
    for url, options, why in (
        (f"file://{tmp_path}/file/run", {}, "Not a directory"),
        ("nowhere://run", {}, "Protocol not known: nowhere"),
        ("memory://b/run", {"storage_options": f"@{tmp_path}/gone.json"}, "gone.json"),
    ):
        [fault] = faults(url, **options)
        assert fault.startswith("cannot write and delete at --checkpoint.url; give the credentials")
        assert why in fault


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_tiny_dataset(tmp_path_factory.mktemp("dataset"))


@pytest.fixture(scope="module")
def single_segments(tmp_path_factory):
    """A dataset whose settings say that its instances are single sentences."""
    block = random_block(np.random.default_rng(0), 20, 16, 60)
    settings = {"lower_case": True, "instances": "single-sentence"}
    folder = tmp_path_factory.mktemp("single")
    return write_dataset(folder, {("train", 16, 0, 0): [block]}, 60, settings)


@pytest.mark.engines
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"phases": []}, None),
        ({"phases": [Phase(16, 2, 1, 0.1), Phase(32, 2, 1, 0.1)]}, "no train instances of seq_len"),
        ({"phases": [Phase(64, 2, 1, 0.1)], "data": []}, "phases.0.seq_len is 64, the model reads"),
        ({"steps": [1, 2]}, "--steps has 2 values and there is 1 phase"),
        ({"phases": [Phase(16, 1, 1, 0.1)]}, "phases.0.global_batch is 1 for 2 ranks"),
        ({"model": ModelSettings("tiny", {"vocab_size": 5})}, "model.overrides sets vocab_size"),
    ],
)
def test_settings_that_pretrain_would_refuse_are_a_fault(data, ranks, tmp_path, changed, said):
    two_ranks = dataclasses.replace(ranks, world_size=2)
    fields = {
        "data": [str(data)],
        "output": str(tmp_path),
        "phases": [Phase(16, 2, 1, 0.1)],
        "model": ModelSettings("tiny", TINY),
    }
    faults = look_around(DoctorSettings(**{**fields, **changed}), two_ranks).faults
    if said is None:
        assert faults == ()
    else:
        [fault] = faults
        assert fault.startswith("pretrain would refuse these settings: ")
        assert said in fault


@pytest.mark.engines
@pytest.mark.parametrize("phases", [[], [Phase(16, 2, 1, 0.1)]])
def test_the_objective_must_fit_the_data(single_segments, ranks, tmp_path, phases):
    fields = {"data": [str(single_segments)], "output": str(tmp_path), "phases": phases}
    found = look_around(DoctorSettings(**fields), ranks)
    [fault] = found.faults
    assert "its instances (single-sentence) have one segment" in fault
    assert len(found.data) == 1
    assert look_around(DoctorSettings(objective="mlm", **fields), ranks).faults == ()


@pytest.mark.engines
def test_two_ranks_that_are_well(data, tmp_path):
    words = ["doctor", "--data", str(data), "--output", f"{tmp_path}/run"]
    launch = run_ranks(["-m", "trainer", *words, "--checkpoint.url", f"file://{tmp_path}"], 2)
    assert [process.returncode for process in launch] == [0, 0], launch[0].stdout + launch[0].stderr
    assert "all is well on 2 rank(s) of 1 node(s)" in launch[0].stdout
    assert "all-reduce: " in launch[0].stdout
    assert launch[1].stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.engines
def test_one_rank_made_unfit_is_named(data, tmp_path):
    """Rank 1 has another torch, and no right to read the data or write the output."""
    words = ["doctor", "--data", str(data), "--output", str(tmp_path / "run")]
    launch = run_ranks([__file__, *words], 2)
    assert [process.returncode for process in launch] == [1, 1], launch[0].stderr
    printed = launch[0].stdout
    assert "WRONG on rank 0" not in printed
    for said in (
        "WRONG on rank 1", "torch is 1.0.0; 1 of 2 ranks have 2.", "cannot read the data; ",
        "manifest.json", "cannot write the output, ", "3 finding(s) on 2 rank(s) of 1 node(s)",
    ):  # fmt: skip
        assert said in printed


def make_unfit():
    """What is wrong with this process, as far as it does not show elsewhere."""
    versions, open_mixture = doctor.software_versions, doctor.open_mixture
    doctor.software_versions = lambda names: versions(names) | {"torch": "1.0.0"}
    doctor.open_mixture = lambda data, given: open_mixture([f"{each}-gone" for each in data], given)

    def refuse(dir):
        raise PermissionError(13, "Permission denied", str(dir))

    doctor.tempfile.TemporaryFile = refuse


if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        make_unfit()
    sys.exit(main(sys.argv[1:]))
