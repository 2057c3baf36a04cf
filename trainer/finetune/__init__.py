"""Fine-tunes models on labelled tasks, and writes predictions and metrics."""
