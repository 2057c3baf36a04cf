"""What keeps a run from going wrong unseen (docs/resilience.md)."""
