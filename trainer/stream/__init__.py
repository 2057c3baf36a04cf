"""Shards to packed micro-batches, in one exact global order that can resume anywhere (docs/order.md).

order.py says which instance goes where, fetch.py reads blocks ahead of need, step.py cuts a rank's share of every
global batch into micro-batches. May import torch (step.py only), numpy and pipeline.shards; nothing else of ours.
"""
