"""Minimal pairs of sentences, such as BLiMP: reads files, scores sentences, counts right pairs."""
