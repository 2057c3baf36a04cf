"""Token classification: CoNLL columns to labelled pieces, predicted tags to entities and their scores.

May import numpy, tokenizer and trainer.finetune.
"""
