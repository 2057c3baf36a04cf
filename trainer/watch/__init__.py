"""Shows a run: in the terminal, in TensorBoard and W&B, and as a page (docs/watching.md)."""
