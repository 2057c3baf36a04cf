"""Scores minimal pairs of sentences, such as BLiMP's, and counts how often a model is right."""
