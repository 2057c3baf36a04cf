"""Streams the steps of one rank from shards (docs/streaming.md).

order/ says which instance comes when, by rules that need no data; reading/ fetches blocks by
ranges; batches/ packs rows into micro-batches. The files here put the three together.
"""
