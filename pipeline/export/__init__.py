"""Exports the instances of a dataset to files that other trainers read."""
