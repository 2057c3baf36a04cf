"""scripts/launch-dataflow.sh puts together the command it says."""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/launch-dataflow.sh"
DRY = {"BUCKET": "gs://b", "DRY_RUN": "1"}


def launch(*arguments, **variables):
    environment = {"PATH": os.environ["PATH"], "PROJECT": "p", "REGION": "r"} | variables
    command, how = [SCRIPT, *arguments], {"capture_output": True, "text": True}
    return subprocess.run(command, env=environment, **how, check=False)


def test_the_command_is_the_users_flags_and_the_runners_options():
    ran = launch("--output", "gs://b/data", "--", "--max_num_workers=3", **DRY)
    assert ran.stdout.split() == [
        "python", "-m", "pipeline", "build", "--output", "gs://b/data", "--", "--runner=DataflowRunner", "--project=p",
        "--region=r", "--temp_location=gs://b/tmp", "--staging_location=gs://b/staging",
        "--setup_file=./pyproject.toml", "--max_num_workers=3",
    ]  # fmt: skip
    account = {"SERVICE_ACCOUNT": "beambert@p.iam.gserviceaccount.com"}
    with_image = launch("--output", "gs://b/data", IMAGE="x/y:1", **account, **DRY).stdout.split()
    assert with_image[-3:] == [
        "--sdk_container_image=x/y:1",
        "--sdk_location=container",
        "--service_account_email=beambert@p.iam.gserviceaccount.com",
    ]


def test_what_the_service_may_take_is_given_by_variables():
    sizes = {"MACHINE_TYPE": "n2-standard-4", "DISK_GB": "50", "MAX_WORKERS": "9"}
    variables = DRY | sizes | {"FLEXIBLE": "1", "PREBUILD": "r.example/p/workers"}
    ran = launch("--output", "gs://b/data", "--", "--disk_size_gb=70", **variables)
    assert ran.stdout.split()[-8:] == [
        "--setup_file=./pyproject.toml", "--prebuild_sdk_container_engine=cloud_build",
        "--docker_registry_push_url=r.example/p/workers", "--machine_type=n2-standard-4", "--disk_size_gb=50",
        "--max_num_workers=9", "--flexrs_goal=COST_OPTIMIZED", "--disk_size_gb=70",
    ]  # fmt: skip
    ran = launch(BUCKET="gs://b", IMAGE="x/y:1", PREBUILD="r.example/p/workers")
    assert (ran.returncode, "IMAGE and PREBUILD" in ran.stderr) == (2, True)


def test_what_is_missing_is_named():
    ran = launch("--output", "gs://b/data")
    assert (ran.returncode, "set BUCKET" in ran.stderr) == (2, True)
