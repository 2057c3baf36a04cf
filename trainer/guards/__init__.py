"""What keeps a run from going wrong unseen: bad gradients, flipped bits, ranks that hang (docs/resilience.md)."""
