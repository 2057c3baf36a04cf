"""Ranged reads of shards: complete, checked, retried, cached."""
