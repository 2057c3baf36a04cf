"""BERT over packed tokens: sizes, attention back ends, encoder, pretraining heads.

May import torch and numpy; nothing of the pipeline, of the stream or of the optimizers.
"""
