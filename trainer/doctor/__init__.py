"""`python -m trainer doctor`: whether every node of a job is fit to train (docs/watching.md)."""
