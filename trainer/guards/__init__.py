"""What keeps a run from going wrong unseen (docs/resilience.md).

Guards look for bad gradients, flipped bits and ranks that hang.
"""
