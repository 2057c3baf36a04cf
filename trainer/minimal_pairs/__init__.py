"""Minimal pairs, such as BLiMP's: files read, sentences scored by a model, accuracies."""
