"""Encoded documents between the two jobs of a build: token parts, their index, and buckets."""
