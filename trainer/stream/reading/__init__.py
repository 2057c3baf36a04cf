"""Reads blocks of shards by requests for ranges of bytes.

The bytes are checked, failed requests are made again, and a cache on disk can keep the blocks.
"""
