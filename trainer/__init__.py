"""Shards to checkpoints: streaming, BERT, ZeRO training, export.

From the ground up: process/ is the rank itself, stream/ reads and packs, model/ is BERT, optim/
moves weights, runs/ is a run's folder, checkpoints/ saves and goes on, guards/ looks for what goes
wrong, watch/ shows a run; pretrain/ puts them together. conversion/ speaks Hugging Face's and
Google's formats, inference/ uses a model, finetune/ teaches it a task, preflight/ is `plan`,
`doctor` and `stream`, report/ draws a run. tests/project/test_layering.py says who may import whom.
"""
