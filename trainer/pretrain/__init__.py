"""Pretraining: the loop, a run and its phases, objectives, validation, and steps not taken."""
