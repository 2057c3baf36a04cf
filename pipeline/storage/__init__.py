"""Reading and writing where fsspec reaches: whole or not at all, again after faults that pass."""
