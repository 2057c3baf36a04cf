"""Models in the forms of others: Hugging Face's folders, ONNX, Google's checkpoints to read."""
