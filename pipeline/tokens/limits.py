"""Limits that settings name; they import nothing."""

VALIDATION_TOKENS = 1_280_000
"""The most tokens that are held out, where a build does not say otherwise."""
