"""Files in configs/finetune are complete but for model and data; documents name settings that exist."""

import dataclasses
import re
from pathlib import Path

import pytest

from pipeline.command_line.program import parse_settings
from trainer.cli import COMMANDS
from trainer.finetune.settings import SquadSettings, TokenSettings, check_settings
from trainer.finetune.tasks import open_task

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


def test_questions_and_entities_have_the_papers_settings():
    squad, squad2 = read("squad"), read("squad2", "--squad.null_threshold", "-1.5")
    assert (squad.seq_len, squad.search_global_batch, squad.search_epochs) == (384, [32], [3])
    assert (squad2.task, squad2.search_global_batch, squad2.search_epochs) == ("squad2", [48], [2])
    assert squad2.squad.null_threshold == -1.5
    assert read("ner", "--tokens.tag_column", "2").tokens.tag_column == 2


@pytest.mark.parametrize(
    ("document", "prefix", "defaults"),
    [
        ("question-answering.md", "squad", SquadSettings()),
        ("token-classification.md", "tokens", TokenSettings()),
    ],
)
def test_documents_name_settings_and_defaults_that_exist(document, prefix, defaults):
    text = (DOCS / document).read_text()
    named = dict(re.findall(rf"`--{prefix}\.(\w+)`(?: (-?\d+)\b)?", text))
    assert set(named) <= set(dataclasses.asdict(defaults))
    stated = {name: int(number) for name, number in named.items() if number}
    assert stated == {
        name: value
        for name, value in dataclasses.asdict(defaults).items()
        if isinstance(value, int)
    }
