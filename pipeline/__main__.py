"""`python -m pipeline`. Defines nothing: classes defined in a main module cannot be found by Beam's workers."""

import sys

from pipeline.interrupts import leave_while_importing

if __name__ == "__main__":
    leave_while_importing()
    from pipeline.cli import main

    sys.exit(main())
