"""Text to wordpiece ids: vocabularies, the readable reference, encoders, export and learning."""
