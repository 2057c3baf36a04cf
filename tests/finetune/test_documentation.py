"""The page of the command and its settings files, held to the program."""

import re
from pathlib import Path

import pytest

from pipeline.command_line.program import parse_settings
from trainer.cli import COMMANDS
from trainer.finetune.settings import SWEEPS, FinetuneSettings, check_settings
from trainer.finetune.tasks import TASKS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/finetuning.md").read_text()
NEEDED = ["--task", "sst2", "--model", "M", "--train", "T", "--validation", "V", "--output", "O"]


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_on_the_page_and_in_the_help(task):
    assert f"`{task}`" in PAGE
    assert re.search(rf"\b{task}\b", FinetuneSettings.__doc__)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs/finetune").glob("*.yaml")), ids=lambda path: path.name
)
def test_settings_files_are_read(path):
    settings = parse_settings("finetune", COMMANDS["finetune"], [*NEEDED, "--config", str(path)])
    check_settings(settings)


def test_the_papers_search():
    assert SWEEPS["paper"] == ([16, 32], [5e-5, 3e-5, 2e-5], [2, 3, 4])  # BERT paper, appendix A.3
