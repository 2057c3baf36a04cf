"""Limits that are defaults of settings, in a module that imports nothing."""

VALIDATION_TOKENS = 1_280_000
"""The most tokens that are held out for validation, unless a build sets another number."""
