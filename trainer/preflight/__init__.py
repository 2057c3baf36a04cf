"""Before a run: its plan, `doctor` for every node, the speed of its stream (docs/watching.md)."""
