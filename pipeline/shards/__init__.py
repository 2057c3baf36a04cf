"""The contract between builder and trainer: block schema, manifest and tables, storage, verification.

Stated for readers in other languages in docs/format.md.
"""
