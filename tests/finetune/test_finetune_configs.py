"""Files in configs/finetune are complete but for model and data; documents name what exists."""

import dataclasses
import re
from pathlib import Path

import pytest

from pipeline.command_line.program import parse_settings
from trainer.cli import COMMANDS
from trainer.finetune.glue import LAYOUTS
from trainer.finetune.results import list_recipes
from trainer.finetune.settings import FinetuneSettings, SquadSettings, TokenSettings, check_settings
from trainer.finetune.table import HEADS_AND_METRICS
from trainer.finetune.task import TASKS, open_task

ROOT = Path(__file__).parents[2]
CONFIGS, DOCS = ROOT / "configs/finetune", ROOT / "docs"
NEEDED = ["--model", "m", "--train", "t", "--validation", "v", "--output", "o"]


def read(name, *arguments):
    given = ["--config", str(CONFIGS / f"{name}.yaml"), *NEEDED, *arguments]
    return parse_settings("finetune", COMMANDS["finetune"], given)


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.yaml")))
def test_configs_can_be_run(name):
    settings = read(name, *(["--task", "cola"] if name == "glue" else []))
    check_settings(settings)
    assert open_task(settings).main_metric


def test_settings_are_the_papers():
    glue = read("glue", "--task", "sst2")  # BERT paper, appendix A.3
    assert (glue.search_global_batch, glue.search_epochs) == ([16, 32], [2, 3, 4])
    assert glue.search_peak_lr == [5e-5, 3e-5, 2e-5]
    assert len(list_recipes(glue)) == 18 * 5
    squad, squad2 = read("squad"), read("squad2", "--squad.null_threshold", "-1.5")
    assert (squad.seq_len, squad.search_global_batch, squad.search_epochs) == (384, [32], [3])
    assert (squad2.task, squad2.search_global_batch, squad2.search_epochs) == ("squad2", [48], [2])
    assert squad2.squad.null_threshold == -1.5
    assert read("ner", "--tokens.tag_column", "2").tokens.tag_column == 2


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_on_the_page_and_in_the_help(task):
    assert f"`{task}`" in (DOCS / "finetuning.md").read_text()
    assert re.search(rf"\b{task}\b", FinetuneSettings.__doc__)


@pytest.mark.parametrize("task", [*LAYOUTS, *HEADS_AND_METRICS])
def test_the_page_has_the_metrics_of_a_task_in_order(task):
    page = (DOCS / "finetuning.md").read_text()
    row = rf"^\| [^|]*`{task}`[^|]* \|[^|]*\| \*\*(\w+)\*\*(.*) \|$"
    [(main, others)] = re.findall(row, page, re.MULTILINE)
    metrics = (main, *re.findall(r", (\w+)", others))
    needed = {"model": "m", "train": ["t"], "validation": ["v"], "output": "o"}
    assert open_task(FinetuneSettings(task=task, **needed)).metrics == metrics


@pytest.mark.parametrize(
    ("heading", "prefix", "defaults"),
    [
        ("Question answering", "squad", SquadSettings()),
        ("Token classification", "tokens", TokenSettings()),
    ],
)
def test_sections_name_settings_and_defaults_that_exist(heading, prefix, defaults):
    page = (DOCS / "finetuning.md").read_text()
    text = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    values = dataclasses.asdict(defaults)
    named = dict(re.findall(rf"`--{prefix}\.(\w+)`(?: (-?\d+)\b)?", text))
    assert set(named) <= set(values)
    stated = {name: int(number) for name, number in named.items() if number}
    assert stated == {name: each for name, each in values.items() if isinstance(each, int)}
