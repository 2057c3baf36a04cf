"""Reading and writing anywhere fsspec reaches: whole or not at all, again after passing faults, no secrets told."""
