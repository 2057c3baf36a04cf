"""Blocks unpacked, rows gathered from them, and packed into micro-batches."""
