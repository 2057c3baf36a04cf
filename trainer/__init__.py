"""Shards to checkpoints: streaming, BERT, ZeRO training, export (docs/architecture.md)."""
