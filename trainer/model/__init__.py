"""BERT over packed tokens: sizes, attention back ends, encoder, pretraining and task heads."""
