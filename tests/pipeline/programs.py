"""Running the program as a person does, and what a build reads and leaves."""

import json

from pipeline.cli import COMMANDS
from pipeline.command_line.program import run_program
from pipeline.shards.dataset import open_dataset


def run(*words):
    return run_program("python -m pipeline", "Tests.", COMMANDS, list(map(str, words)))


def write_texts(path, texts, field="text"):
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts))


def root_hash(output):
    return open_dataset(str(output)).manifest.root_hash
