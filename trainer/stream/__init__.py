"""The way from shards to packed micro-batches, in one exact global order (docs/order.md).

Training resumes anywhere in it. order.py says which instance goes where, read_ahead.py plans which
blocks are read when, read_threads.py reads them, fetch.py gathers the instances of steps from them,
packing.py cuts steps into micro-batches, step.py gives them out, and pipeline.py composes them with
webdataset.
"""
