"""The contract between builder and trainer, stated for other languages in docs/format.md."""
