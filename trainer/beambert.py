"""Defines the program `beambert`, which has the commands of both `pipeline` and `trainer`."""

import os
import sys

# Imported here, before `main` adds the current folder to the path, so that a file tokenizer.py in
# that folder cannot take its place.
import tokenizer  # noqa: F401
from pipeline.cli import COMMANDS as PIPELINE
from pipeline.cli import leave_out_beams_client
from pipeline.command_line.program import run_program
from pipeline.interrupts import leave_while_importing
from trainer.cli import COMMANDS as TRAINER

DESCRIPTION = """\
Raw text to shards of BERT pretraining instances, and shards to a trained BERT. On several GPUs:
  deepspeed --num_gpus 8 --no_python beambert pretrain --config bert-base --data DIR --output RUN"""
_SHARED_NAMES = PIPELINE.keys() & TRAINER.keys()
COMMANDS = {
    **{
        f"{name}-data" if name in _SHARED_NAMES else name: command
        for name, command in PIPELINE.items()
    },
    **TRAINER,
}
"""The commands by name. If both programs have a name, that of `pipeline` gets the ending -data."""


def main() -> int:
    """Runs the command that the arguments of this process name, and returns its exit code."""
    leave_while_importing()
    # The current folder is the last place where modules are looked for, here and in workers. So
    # the user's filters in it are found, but a file pipeline.py in it does not hide our package.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    sys.path.append(os.getcwd())
    leave_out_beams_client()
    return run_program("beambert", DESCRIPTION, COMMANDS)
