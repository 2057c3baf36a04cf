"""Documents to shards: readers, sentences, pairs, masks and the Beam jobs that run them at any scale.

May import tokenizer, Beam, pyarrow, fsspec, sentencex and zstandard; webdataset only inside the function that writes
a shard. Never torch, never trainer.
"""
