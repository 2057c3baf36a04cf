"""pre-commit and the workflow call scripts of the checkout, as a person does."""

import os
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_automation_runs_scripts_of_the_checkout():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repository["repo"] for repository in hooks] == ["local"]
    jobs = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    commands += [hook["entry"] for repository in hooks for hook in repository["hooks"]]
    assert {"scripts/check", "scripts/test-servers"} <= {*commands}
    assert all(os.access(ROOT / each.split()[0], os.X_OK) for each in commands), commands
