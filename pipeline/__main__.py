"""Runs `python -m pipeline`.

Nothing is defined here, because Beam's workers do not find classes of a main module.
"""

# PYTHON_ARGCOMPLETE_OK
import sys

from pipeline.interrupts import leave_while_importing

if __name__ == "__main__":
    leave_while_importing()
    from pipeline.cli import main

    sys.exit(main())
