"""A stand-in for CUDA, preloaded: the CUDA build of torch runs without a GPU, and what it asks of one is counted."""
