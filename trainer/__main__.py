"""Runs `python -m trainer`. Everything is defined in trainer/cli.py."""

# PYTHON_ARGCOMPLETE_OK
import sys

from pipeline.interrupts import leave_while_importing

leave_while_importing()
from trainer.cli import main  # noqa: E402

sys.exit(main())
