"""Converts models to and from the formats of others: Hugging Face, Google and DeepSpeed."""
