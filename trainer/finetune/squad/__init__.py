"""Question answering: SQuAD files to windows of pieces, span logits to answers and scores."""
