"""Fine-tuning of a pretrained BERT on labelled tasks: files to items, items to a model, predictions to metrics.

May import torch, tokenizer, what surrounds a step in trainer, and pipeline's command line and storage.
"""
