"""Manages the folder of a run: its settings, lock and metrics, and how it may be continued."""
