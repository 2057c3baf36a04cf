"""Files of a word and its label a line, and what their labels say."""
