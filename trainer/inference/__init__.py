"""Uses trained models: opens them, measures them, and asks them for words and vectors."""
