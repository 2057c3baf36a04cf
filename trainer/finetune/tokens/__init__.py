"""Token classification: CoNLL columns to labelled pieces, predicted tags to entities."""
