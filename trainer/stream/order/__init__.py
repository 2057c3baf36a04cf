"""Decides which instance is trained on when, and by which rank: docs/order.md in pure functions."""
