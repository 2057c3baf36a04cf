"""Runs the stages of `python -m pipeline build`, with one module for each."""
