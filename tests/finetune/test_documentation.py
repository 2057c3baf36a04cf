"""The page of the command and its settings files, held to the program."""

import re
from pathlib import Path

import pytest

from pipeline.command_line.program import parse_settings
from trainer.cli import COMMANDS
from trainer.finetune.results import list_recipes
from trainer.finetune.settings import FinetuneSettings
from trainer.finetune.tasks import TASKS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/finetuning.md").read_text()
NEEDED = ["--task", "sst2", "--model", "M", "--train", "T", "--validation", "V", "--output", "O"]


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_on_the_page_and_in_the_help(task):
    assert f"`{task}`" in PAGE
    assert re.search(rf"\b{task}\b", FinetuneSettings.__doc__)


def test_the_papers_search():  # BERT paper, appendix A.3
    config = str(ROOT / "configs/finetune/glue.yaml")
    settings = parse_settings("finetune", COMMANDS["finetune"], [*NEEDED, "--config", config])
    assert settings.search_global_batch == [16, 32]
    assert settings.search_peak_lr == [5e-5, 3e-5, 2e-5]
    assert settings.search_epochs == [2, 3, 4]
    assert len(list_recipes(settings)) == 18 * 5
