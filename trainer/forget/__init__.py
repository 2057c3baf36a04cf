"""Trains a run again without some documents, as if it had never read them."""
