"""Streams one rank's share of every step from shards (docs/streaming.md).

order/ decides which instance is trained on when, by rules that need no data. reading/ reads blocks
by ranged requests. batches/ packs rows into micro-batches. The files here put the three together.
"""
