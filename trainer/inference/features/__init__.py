"""Hidden states of a trained model for text, in files or in memory."""
