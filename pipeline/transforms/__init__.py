"""Transforms for Beam pipelines of one's own (docs/library.md)."""
