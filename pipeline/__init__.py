"""Documents to shards: readers, sentences, pairs, masks and the Beam jobs that run them at any scale.

May import tokenizer, Beam, pyarrow, fsspec, sentencex and zstandard. Never torch, never trainer.
"""
