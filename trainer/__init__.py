"""Shards to checkpoints: streaming, BERT, ZeRO training, export.

May import torch, deepspeed, webdataset, tokenizer, pipeline.shards and pipeline.command_line; never Beam, nothing
else of pipeline.
"""
