"""Datasets of shards: the contract between builder and trainer, described in docs/format.md."""
