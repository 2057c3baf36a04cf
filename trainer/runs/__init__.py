"""A run's folder: its settings, its lock, its metrics, and what a continued run may change."""
