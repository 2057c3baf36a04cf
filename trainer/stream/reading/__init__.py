"""Reads blocks of shards by ranged requests that are checked, repeated and cached."""
