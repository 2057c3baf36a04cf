"""What a run shows of itself while it goes: terminal, TensorBoard, Weights & Biases, profile (docs/watching.md)."""
