"""Text to wordpiece ids: vocabularies, the readable reference, the fast encoder, export and learning.

May import the standard library, numpy, regex and tokenizers, and nothing else of this project.
"""
