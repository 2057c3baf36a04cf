"""What `python -m pipeline build` does, a file a stage."""
