"""Computes vectors for texts from the hidden states of a trained model."""
