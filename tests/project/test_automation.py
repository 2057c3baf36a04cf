"""pre-commit and the workflow call scripts of the checkout, as a person does."""

import os
from itertools import chain
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def commands_of_automation():
    """What pre-commit and the workflow run."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repository["repo"] for repository in hooks] == ["local"]
    yield from (hook["entry"] for repository in hooks for hook in repository["hooks"])
    jobs = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"].values()
    yield from (
        step["run"] for step in chain.from_iterable(job["steps"] for job in jobs) if "run" in step
    )


def test_automation_runs_scripts_of_the_checkout():
    commands = list(commands_of_automation())
    assert {"scripts/check", "scripts/test-servers"} <= set(commands)
    for command in commands:
        assert os.access(ROOT / command.split()[0], os.X_OK), (
            f"{command} runs no script of this checkout"
        )
