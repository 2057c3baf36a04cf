"""`beambert COMMAND`: every command of both programs, which import what they need."""

import os
import sys

import tokenizer  # noqa: F401  (before a folder's own files can be found, see main)
from pipeline.cli import COMMANDS as PIPELINE
from pipeline.cli import leave_out_beams_client
from pipeline.command_line.program import run_program
from pipeline.interrupts import leave_while_importing
from trainer.cli import COMMANDS as TRAINER

DESCRIPTION = """\
Raw text to shards of BERT pretraining instances, and shards to a trained BERT. On several GPUs:
  deepspeed --num_gpus 8 --no_python beambert pretrain --config bert-base --data DIR --output RUN"""
_OF_BOTH = PIPELINE.keys() & TRAINER.keys()
COMMANDS = {
    **{f"{name}-data" if name in _OF_BOTH else name: command for name, command in PIPELINE.items()},
    **TRAINER,
}
"""A name that both programs have is the trainer's; the builder's ends in -data."""


def main() -> int:
    """Runs the command that the process's arguments name."""
    leave_while_importing()
    # A file called pipeline.py where somebody works hides nothing here or in a worker; filters
    # there are found.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    sys.path.append(os.getcwd())
    leave_out_beams_client()
    return run_program("beambert", DESCRIPTION, COMMANDS)
