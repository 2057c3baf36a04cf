"""The files that start training on clusters: their syntax and the commands they come to."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.loaded_python import run_python

ROOT = Path(__file__).parents[2]
SBATCH = ROOT / "scripts/launch-slurm.sbatch"
MANIFEST = ROOT / "scripts/launch-kubernetes.yaml"
LAUNCHING = (ROOT / "docs/launching.md").read_text()


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


SRUN = """\
shift
for task in 0 1; do SLURM_PROCID=$task SLURM_LOCALID=$task "$@" || code=$?; done; exit ${code:-0}"""
SCONTROL = '[ "$1" = show ] && printf "node7\\nnode8\\n" || echo "scontrol $*"'
PYTHON = """\
echo "rank $RANK of $WORLD_SIZE, local $LOCAL_RANK of $LOCAL_WORLD_SIZE, $MASTER_ADDR:$MASTER_PORT: $*"
[ "$3" = pretrain ] && exit ${EXIT:-0}
[ "$3" = doctor ] && exit ${SICK:-0}"""


@pytest.fixture
def slurm(tmp_path):
    """srun starts one task after the other, python says how it was called; EXIT is its code."""
    write_program(tmp_path / "bin/srun", SRUN)
    write_program(tmp_path / "bin/scontrol", SCONTROL)
    write_program(tmp_path / ".venv/bin/python", PYTHON)

    def submit(*arguments, **variables):
        allocation = {
            "SLURM_JOB_ID": "41234", "SLURM_JOB_NODELIST": "node[7-8]", "SLURM_NTASKS": "2",
            "SLURM_NTASKS_PER_NODE": "1", "SLURM_SUBMIT_DIR": str(tmp_path),
        }  # fmt: skip
        run = {"CONFIG": "c.yaml", "DATA": "s3://b/data", "OUTPUT": "/shared/run"}
        path = {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        how = {"env": path | allocation | run | variables, "capture_output": True, "text": True}
        return subprocess.run([SBATCH, *arguments], **how, check=False)

    return submit


@pytest.mark.processes
def test_slurm_starts_a_rank_in_every_task_after_the_doctor(slurm):
    ran, flags = slurm("--precision", "bf16"), "--data s3://b/data --output /shared/run"
    place = [f"rank {rank} of 2, local {rank} of 1, node7:21234: -m trainer" for rank in range(2)]
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        *(f"{each} doctor {flags}" for each in place),
        *(f"{each} pretrain --config c.yaml {flags} --precision bf16" for each in place),
    ]
    assert "doctor" not in slurm(DOCTOR="0").stdout


@pytest.mark.processes
def test_slurm_tells_both_where_checkpoints_meet(slurm):
    lines = slurm(CHECKPOINT_URL="s3://b/my run").stdout.splitlines()
    assert len(lines) == 4
    assert all(line.endswith("/shared/run --checkpoint.url s3://b/my run") for line in lines)


@pytest.mark.processes
def test_slurm_queues_a_stopped_run_again_and_no_other(slurm):
    stopped, failed, sick = slurm(EXIT="143"), slurm(EXIT="2"), slurm(SICK="1")
    assert (stopped.returncode, stopped.stdout.splitlines()[-1]) == (143, "scontrol requeue 41234")
    assert (failed.returncode, "requeue" in failed.stdout) == (2, False)
    assert (sick.returncode, "pretrain" in sick.stdout) == (1, False)


@pytest.mark.processes
def test_slurm_names_what_is_missing(slurm):
    ran = slurm(DATA="")
    assert (ran.returncode, "error: set DATA" in ran.stderr) == (2, True)


def test_options_for_slurm_are_as_the_ranks_need_them():
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)", SBATCH.read_text(), re.MULTILINE))
    assert options["ntasks-per-node"] == options["gpus-per-node"] == "8"
    assert options["nodes"] == "2"
    assert options["signal"] == "TERM@300"


def job():
    service, found = yaml.safe_load_all(MANIFEST.read_text())
    pod = found["spec"]["template"]["spec"]
    return service, found["spec"], pod, pod["containers"][0]


def test_kubernetes_parts_fit_each_other():
    service, spec, pod, container = job()
    values = {each["name"]: each["value"] for each in container["env"]}
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == int(values["NODES"]) == 2
    assert container["resources"]["limits"]["nvidia.com/gpu"] == int(values["GPUS"]) == 8
    assert service["spec"]["clusterIP"] == "None"
    name = service["metadata"]["name"]
    assert name == pod["subdomain"] == service["spec"]["selector"]["job-name"]
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in pod["volumes"]}
    assert (ROOT / values["CONFIG"]).is_file()


@pytest.mark.processes
def test_kubernetes_starts_torchrun_on_every_node(tmp_path):
    container = job()[3]
    write_program(tmp_path / "bin/torchrun", 'echo "torchrun $*"')
    values = {each["name"]: each["value"] for each in container["env"]}
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = values | {"JOB_COMPLETION_INDEX": "1", "PATH": path}
    command = [*container["command"], *container["args"]]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    place = (
        "torchrun --nnodes=2 --node_rank=1 --nproc_per_node=8 --shutdown_timeout=280"
        " --master_addr=beambert-0.beambert --master_port=29500 -m trainer"
    )
    flags = "--data s3://bucket/data --output /runs/bert-large"
    assert ran.stdout.splitlines() == [
        f"{place} doctor {flags}",
        f"{place} pretrain --config configs/pretrain/bert-large.yaml {flags}",
    ]


@pytest.mark.processes
def test_torchrun_knows_the_options_that_are_given():
    said = run_python(["-m", "torch.distributed.run", "--help"]).stdout
    for option in re.findall(r"--[a-z_]+(?==)", job()[3]["args"][0].replace("--output=", "")):
        assert option in said, option


@pytest.mark.processes
def test_commands_of_the_page_are_shell():
    blocks = re.findall(r"```bash\n(.*?)```", LAUNCHING, re.DOTALL)
    assert len(blocks) >= 6
    for block in blocks:
        subprocess.run(["bash", "-n"], input=block, text=True, check=True)
