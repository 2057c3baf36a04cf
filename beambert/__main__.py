"""`python -m beambert`; defines nothing, see beambert.cli."""

import sys

from beambert.cli import main

sys.exit(main())
