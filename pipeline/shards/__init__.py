"""The contract between builder and trainer: block schema, manifest and tables, storage, verification.

Stated for readers in other languages in docs/format.md. May import numpy, pyarrow and fsspec, nothing else: a trainer
that reads shards never meets Beam, and a builder that writes them never meets torch.
"""
