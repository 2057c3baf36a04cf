"""Implements token classification: finds the entities in sentences of words."""
