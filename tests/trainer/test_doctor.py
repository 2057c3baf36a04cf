"""`trainer doctor`: what it finds on nodes that are unfit, and that it names them.

Run as a program, this file is one rank of which rank 1 is unfit: `test_doctor.py doctor ...`.
"""

import dataclasses
import os
import sys

import numpy as np
import pytest

from pipeline.shards import growing
from pipeline.shards.dataset import open_dataset
from pipeline.storage.folder import Folder
from tests.datasets import write_dataset
from tests.trainer.tiny_dataset import random_block, write_tiny_dataset
from tests.trainer.tiny_run import OURS, SIZES, TINY, launch, write_config
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
from trainer.settings import CheckpointSettings, Phase, ValidationSettings

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


@pytest.fixture(scope="module")
def trunk(data, tmp_path_factory):
    """A run of 2 steps of 4 instances, and the vocabulary of its dataset."""
    output = tmp_path_factory.mktemp("runs") / "trunk"
    phase = {"seq_len": 16, "global_batch": 4, "steps": 2, "peak_lr": 0.02}
    launch(OURS, write_config(output, data, phases=[phase]), 1)
    return output


def look_up(ranks, folder, tmp_path, **changed):
    fields = {
        "data": [str(folder)],
        "output": str(tmp_path / "run"),
        "phases": [Phase(16, 4, 4, 0.02)],
        "model": ModelSettings("tiny", SIZES),
    }
    found = look_around(DoctorSettings(**{**fields, **changed}), ranks)
    assert not (tmp_path / "run").exists()
    return found.faults


@pytest.mark.engines
def test_what_the_training_begins_with_is_read(data, trunk, ranks, tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"sentence_good": "w1 w2", "sentence_bad": "w2 w1"}\n')
    exported = tmp_path / "exported"
    assert main(["export", str(trunk), "--output", str(exported)]) == 0
    validation = ValidationSettings(pairs=str(pairs))
    for changed in (
        {"continue_from": str(trunk), "validation": validation, "seed": 0},
        {"init_from": str(exported)},
        {"init_from": str(exported), "phases": [], "data": []},
    ):
        assert look_up(ranks, data, tmp_path, **changed) == ()


@pytest.mark.engines
@pytest.mark.parametrize("has_data", [True, False])
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"init_from": "{folder}/gone"}, "gone: found no folder; "),
        ({"continue_from": "{folder}/gone@2"}, "gone: found no folder; "),
        ({"leave_out": "{folder}/gone"}, "gone: there is no such file"),
        ({"leave_out": "{folder}/words"}, "words:1: "),
        ({"validation": ValidationSettings(pairs="{folder}/gone")}, "gone: no file is there"),
        ({"validation": ValidationSettings(pairs="{folder}/words")}, "words:1: found no JSON"),
    ],
)
def test_what_is_not_there_is_a_fault(data, ranks, tmp_path, changed, said, has_data):
    (tmp_path / "words").write_text("no hex digits\n")

    def placed(value):
        if isinstance(value, ValidationSettings):
            return dataclasses.replace(value, pairs=placed(value.pairs))
        return value.format(folder=tmp_path)

    given = {name: placed(value) for name, value in changed.items()}
    no_data = {} if has_data else {"data": []}
    [fault] = look_up(ranks, data, tmp_path, **given | no_data)
    assert fault.startswith("pretrain would refuse these settings: ")
    assert said in fault


@pytest.mark.engines
def test_what_does_not_fit_is_a_fault(data, trunk, ranks, tmp_path):
    exported = tmp_path / "exported"
    assert main(["export", str(trunk), "--output", str(exported)]) == 0
    unknown = tmp_path / "list"
    unknown.write_text("f" * 16 + "\n")
    large = ModelSettings("tiny", SIZES | {"num_layers": 3})
    for changed, said in (
        ({"init_from": str(exported), "model": large}, "has num_layers 2 (this run: 3)"),
        ({"continue_from": str(trunk), "objective": "mlm"}, "objective was 'mlm+nsp' and is now"),
        ({"continue_from": f"{trunk}@3"}, "has no checkpoint of step 3"),
        ({"leave_out": str(unknown)}, "f" * 16),
    ):
        assert said in "".join(look_up(ranks, data, tmp_path, **changed))
        others = dataclasses.replace(ranks, rank=1)
        assert look_up(others, data, tmp_path, **changed) == (), "rank 0 reads it for all"


@pytest.mark.engines
def test_a_build_is_followed_if_pretrain_would_follow_it(data, ranks, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    [fault] = look_up(ranks, folder, tmp_path, follow=True)
    assert fault.startswith("cannot read the data; ")
    assert f"the build of {folder} to come to its shards" in fault
    begin_build(data, folder)
    assert look_up(ranks, folder, tmp_path, follow=True) == ()
    assert look_up(ranks, folder, tmp_path, follow=True, phases=[Phase(16, 4, 4, 0.02)] * 2) == ()
    [fault] = look_up(ranks, folder, tmp_path, follow=True, phases=[Phase(32, 4, 4, 0.02)])
    assert "no train instances of seq_len 32" in fault
    [fault] = look_up(ranks, folder, tmp_path)
    assert "cannot read the data" in fault


def begin_build(whole, folder):
    """Writes the plan of a build whose passes are those of a finished dataset."""
    dataset = open_dataset(str(whole))
    unknown = {"root_hash": growing.UNKNOWN_HASH, "tables_sha256": {}}
    plan = dataclasses.replace(dataset.manifest, **unknown)
    Folder(str(folder)).write(growing.PLAN, plan.to_json())
    for name in ("vocab.txt", "tokenizer.json"):
        (folder / name).write_bytes(dataset.read_file(name))


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
    doctor.open_mixture = lambda data, *given: open_mixture(
        [f"{each}-gone" for each in data], *given
    )

    def refuse(dir):
        raise PermissionError(13, "Permission denied", str(dir))

    doctor.tempfile.TemporaryFile = refuse


if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        make_unfit()
    sys.exit(main(sys.argv[1:]))
