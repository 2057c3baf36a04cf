"""`python -m pipeline`. Defines nothing: classes defined in a main module cannot be found by Beam's workers."""

import sys

from pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main())
