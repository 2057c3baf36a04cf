"""scripts/launch-dataflow.sh puts together the command it says."""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/launch-dataflow.sh"


def launch(*arguments, **variables):
    environment = {"PATH": os.environ["PATH"]} | variables
    return subprocess.run([SCRIPT, *arguments], env=environment, capture_output=True, text=True, check=False)


def test_the_command_is_the_users_flags_and_the_runners_options():
    common = {"PROJECT": "p", "REGION": "r", "BUCKET": "gs://b", "DRY_RUN": "1"}
    ran = launch("--output", "gs://b/data", "--", "--max_num_workers=3", **common)
    assert ran.stdout.split() == [
        "python", "-m", "pipeline", "build", "--output", "gs://b/data", "--", "--runner=DataflowRunner", "--project=p",
        "--region=r", "--temp_location=gs://b/tmp", "--staging_location=gs://b/staging",
        "--setup_file=./pyproject.toml", "--max_num_workers=3",
    ]  # fmt: skip
    with_image = launch("--output", "gs://b/data", IMAGE="x/y:1", **common).stdout.split()
    assert with_image[-2:] == ["--sdk_container_image=x/y:1", "--sdk_location=container"]


def test_what_is_missing_is_named():
    ran = launch("--output", "gs://b/data", PROJECT="p", REGION="r")
    assert (ran.returncode, "set BUCKET" in ran.stderr) == (2, True)
