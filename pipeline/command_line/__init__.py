"""Reads settings from flags and YAML files, and reports each mistake in one line."""
