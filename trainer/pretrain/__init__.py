"""Pretraining: the loop, a run and its phases, validation, and what becomes of anomalies."""
