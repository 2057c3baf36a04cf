"""Models in the forms of others: Hugging Face's folders, Google's checkpoints to read."""
