"""What a run shows of itself while it goes (docs/watching.md).

It shows itself by terminal, TensorBoard and Weights & Biases.
"""
