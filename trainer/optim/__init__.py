"""Optimizers that work on ZeRO's flat partitions, and schedules of learning rates."""
