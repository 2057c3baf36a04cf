"""`python -m trainer`; defines nothing, see trainer.cli."""

import sys

from trainer.cli import main

sys.exit(main())
