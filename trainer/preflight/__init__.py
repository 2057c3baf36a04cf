"""Before a run: its plan, `doctor` for every node, and the speed of its stream (docs/watching.md)."""
