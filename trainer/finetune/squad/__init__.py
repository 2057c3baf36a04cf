"""Question answering: SQuAD 1.1 and 2.0 files to windows of pieces, span logits to answers and their scores."""
