"""A run's checkpoints: copied and written in the background, kept at a URL, found again."""
