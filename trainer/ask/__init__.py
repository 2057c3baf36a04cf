"""Answers questions about a run: what its steps read, and which steps read a document."""
