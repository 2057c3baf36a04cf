"""Reads and writes files with one word and its tag per line, and the entities in the tags."""
