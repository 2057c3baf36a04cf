"""Encoded documents at rest: token parts, their index, their buckets, and where each came from."""
