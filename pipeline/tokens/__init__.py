"""Encoded documents at rest: token parts, their index, the buckets they are dealt into, and where each came from."""
