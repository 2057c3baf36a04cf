"""Optimizers over ZeRO's flat partitions, and learning rate schedules. May import torch and nothing of ours."""
