"""Optimizers over ZeRO's flat partitions, and learning rate schedules."""
