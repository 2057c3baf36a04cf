"""Shards to checkpoints: streaming, BERT, ZeRO training, export.

May import torch, deepspeed, tokenizer, pipeline.shards and pipeline.command_line; never Beam, nothing else of
pipeline.
"""
