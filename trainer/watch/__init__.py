"""What a run shows while it goes, by terminal, TensorBoard and W&B (docs/watching.md)."""
