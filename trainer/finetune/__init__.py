"""Fine-tuning on labelled tasks: files to items, items to a model, predictions to metrics."""
