"""`trainer doctor`: what it finds on nodes that are unfit, and that it names them.

Run as a program, this file is one rank of which rank 1 is unfit: `test_doctor.py doctor ...`.
"""

import dataclasses
import os
import sys
import time

import pytest

from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.two_ranks import run_ranks
from trainer.cli import main
from trainer.preflight.doctor import format_findings, format_table
from trainer.preflight.facts import LocalFacts, SharedFacts
from trainer.preflight.judge import judge
from trainer.preflight.shared import find_shared_facts
from trainer.safety_settings import CheckpointSettings
from trainer.tool_settings import DoctorSettings

WELL = LocalFacts(
    rank=0, host="node0", local_ranks=2, device="NVIDIA H200", versions={"torch": "2.13.0"}, gpu_free_share=0.99,
    data_mb_per_second=200.0, data_fault="", root_hashes=("ab",), output_fault="", disk_free_bytes=10**12,
    shm_bytes=2**34, open_files=65_536, lockable_bytes=None, has_infiniband=True, memory_bytes=2**38,
)  # fmt: skip
RANKS = [dataclasses.replace(WELL, rank=rank, host=f"node{rank // 2}") for rank in range(8)]
SHARED = SharedFacts((0.0,) * 8, (0.001,) * 8, (900.0,) * 8, 3.0, (True,) * 8)


def findings(shared=SHARED, **changed):
    """What is wrong when rank 5, on node2, differs like this."""
    local = [dataclasses.replace(each, **changed) if each.rank == 5 else each for each in RANKS]
    return [(each.rank, each.host, each.what) for each in judge(local, shared, min_free_gb=10)]


def test_well_nodes_are_well():
    assert findings() == []
    assert format_findings([], RANKS) == ["all is well on 8 rank(s) of 4 node(s)"]


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"versions": {"torch": "2.12.0"}}, "torch is 2.12.0; 7 of 8 ranks have 2.13.0"),
        ({"versions": {"torch": "2.13.0", "nccl": "2.1"}}, "nccl is 2.1; 7 of 8 ranks have none"),
        ({"device": "NVIDIA A100"}, "computes on NVIDIA A100; most ranks on NVIDIA H200"),
        ({"gpu_free_share": 0.4}, "only 40% of the GPU's memory is free"),
        (
            {"data_fault": "/data: Permission denied"},
            "cannot read the data: /data: Permission denied",
        ),
        ({"root_hashes": ("cd",)}, "reads another dataset: root hash cd"),
        ({"data_mb_per_second": 40.0}, "reads the data at 40.0 MB/s, usual is 200.0"),
        (
            {"output_fault": "/run: Read-only file system"},
            "cannot write the output: /run: Read-only file system",
        ),
        ({"disk_free_bytes": 5 * 10**9}, "5.0 GB are free for the output, 10 are wanted"),
        ({"shm_bytes": 64 * 2**20}, "/dev/shm holds 64 MiB, NCCL needs some 256"),
        ({"open_files": 256}, "may open 256 files, 8 ranks need some 544"),
        ({"lockable_bytes": 2**16}, "may lock 0 MiB of memory, InfiniBand needs more"),
        ({"memory_bytes": 2**30}, "1.0 GiB of memory are available for 2 rank(s)"),
    ],
)
def test_the_rank_that_is_unfit_is_named(changed, what):
    assert findings(**changed) == [(5, "node2", what)]


def test_clocks_and_links_name_their_rank():
    offsets = (0.0,) * 5 + (-90.0,) + (0.0,) * 2
    assert findings(dataclasses.replace(SHARED, clock_offset_seconds=offsets)) == [
        (5, "node2", "its clock is 90.0 s behind rank 0's")
    ]
    unsure = dataclasses.replace(
        SHARED, clock_offset_seconds=(0.0,) * 7 + (3.0,), clock_error_seconds=(2.5,) * 8
    )
    assert findings(unsure) == []
    slow = tuple(9.0 if rank == 4 else 900.0 for rank in range(8))
    assert findings(dataclasses.replace(SHARED, link_mb_per_second=slow)) == [
        (4, "node2", "receives 9 MB/s from rank 3 (node1), usual 900")
    ]
    hidden = dataclasses.replace(SHARED, sees_output=(True,) * 6 + (False,) * 2)
    assert [(rank, what) for rank, _, what in findings(hidden)] == [
        (6, "does not see what rank 0 writes at --output"),
        (7, "does not see what rank 0 writes at --output"),
    ]


def test_nodes_with_folders_of_their_own_are_well_where_checkpoints_meet_at_a_url():
    hidden = dataclasses.replace(
        SHARED, sees_output=(True,) * 6 + (False,) * 2, url_faults=("",) * 8
    )
    assert findings(hidden) == []
    assert "run folders apart from rank 0's, which --checkpoint.url allows: node3" in format_table(
        RANKS, hidden
    )
    without = [line for shared in (SHARED, dataclasses.replace(SHARED, url_faults=("",) * 8)) for line in
               format_table(RANKS, shared)]  # fmt: skip
    assert not any("apart" in line for line in without)
    refused = dataclasses.replace(
        hidden, url_faults=("",) * 5 + ("s3://b/run: Access Denied",) + ("",) * 2
    )
    assert findings(refused) == [(5, "node2", "--checkpoint.url: s3://b/run: Access Denied")]


@pytest.mark.engines
def test_the_url_is_written_seen_and_left_as_it_was(ranks, bucket, tmp_path, monkeypatch):
    def faults(url, **options):
        return find_shared_facts(
            ranks, DoctorSettings(checkpoint=CheckpointSettings(url=url), **options)
        ).url_faults

    assert faults(None) is None
    assert faults("memory://bucket/run") == ("",)
    assert not bucket.store
    (tmp_path / "file").touch()
    [fault] = faults(f"file://{tmp_path}/file/run")
    assert "Not a directory" in fault
    [fault] = faults("nowhere://run")
    assert "Protocol not known: nowhere" in fault
    [fault] = faults("memory://bucket/run", storage_options=f"@{tmp_path}/gone.json")
    assert "gone.json" in fault
    monkeypatch.setattr("trainer.preflight.shared.SEEN_SECONDS", 0.0)
    monkeypatch.setattr("trainer.preflight.shared.Folder.exists", lambda *_: False)
    assert faults("memory://bucket/run") == (
        "memory://bucket/run does not show what rank 0 writes there",
    )
    assert not bucket.store


def test_limits_of_no_end_are_well():
    assert findings(open_files=-1, shm_bytes=None) == []


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_tiny_dataset(tmp_path_factory.mktemp("dataset"))


@pytest.mark.engines
def test_two_ranks_that_are_well(data, tmp_path):
    launch = run_ranks(
        ["-m", "trainer", "doctor", "--data", str(data), "--output", f"{tmp_path}/run", "--min_free_gb", "0",
         "--checkpoint.url", f"file://{tmp_path}"], 2,
    )  # fmt: skip
    assert [process.returncode for process in launch] == [0, 0], launch[0].stdout + launch[0].stderr
    assert "all is well on 2 rank(s) of 1 node(s)" in launch[0].stdout
    assert "GB/s of bus bandwidth" in launch[0].stdout
    assert launch[1].stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.engines
def test_one_rank_made_unfit_is_named(data, tmp_path):
    """Rank 1 has another torch, a clock 100 seconds ahead, and no right to read the data or write the output."""
    launch = run_ranks(
        [
            __file__,
            "doctor",
            "--data",
            str(data),
            "--output",
            str(tmp_path / "run"),
            "--min_free_gb",
            "0",
        ],
        2,
    )
    assert [process.returncode for process in launch] == [1, 1], launch[0].stderr
    printed = launch[0].stdout
    assert "WRONG on rank 0" not in printed
    assert "WRONG on rank 1" in printed
    assert "torch is 1.0.0; 1 of 2 ranks have 2." in printed
    assert "its clock is 100.0 s ahead of rank 0's" in printed
    assert "cannot read the data: " in printed
    assert "manifest.json" in printed
    assert "cannot write the output: " in printed
    assert "4 finding(s), by node: " in printed


def make_unfit():
    """What is wrong with this process, as far as it does not show elsewhere."""
    import trainer.preflight.local
    import trainer.preflight.shared

    true_time, versions = time.time, trainer.preflight.local.software_versions
    trainer.preflight.local.software_versions = lambda names: versions(names) | {"torch": "1.0.0"}
    time.time = lambda: true_time() + 100
    open_mixture = trainer.preflight.local.open_mixture
    trainer.preflight.local.open_mixture = lambda data, options: open_mixture(
        [f"{each}-gone" for each in data], options
    )

    def refuse(dir):
        raise PermissionError(13, "Permission denied", str(dir))

    trainer.preflight.local.tempfile.TemporaryFile = refuse


if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        make_unfit()
    sys.exit(main(sys.argv[1:]))
