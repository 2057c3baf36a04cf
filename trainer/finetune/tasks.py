"""Every task by name. Heavy imports stay inside the functions, so that help stays quick."""

import importlib
from typing import cast

from trainer.finetune.settings import FinetuneSettings
from trainer.finetune.task import Task

TASKS = {
    **dict.fromkeys(
        ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"),
        "trainer.finetune.glue:open_glue",
    ),
    "classification": "trainer.finetune.table:open_table",
    "regression": "trainer.finetune.table:open_table",
    "multiple-choice": "trainer.finetune.table:open_table",
    "swag": "trainer.finetune.table:open_table",
    "squad": "trainer.finetune.squad.task:open_squad",
    "squad2": "trainer.finetune.squad.task:open_squad",
    "ner": "trainer.finetune.tokens.task:open_ner",
    "ner-features": "trainer.finetune.tokens.features:open_ner_features",
}
"""Name -> "module:function", called with the settings and returning the task."""


def open_task(settings: FinetuneSettings) -> Task:
    """The task that the settings name; a ValueError names those that there are."""
    if settings.task not in TASKS:
        raise ValueError(f"task {settings.task!r} is unknown; the tasks are {', '.join(TASKS)}")
    module, _, name = TASKS[settings.task].partition(":")
    return cast("Task", getattr(importlib.import_module(module), name)(settings))
