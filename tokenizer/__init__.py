"""Text to wordpiece ids: vocabularies, the readable reference, the fast encoder, export and learning."""
