"""The steps of one rank: order, reading and batches together (docs/streaming.md)."""
