"""Makes the instances of a bucket from its documents, as google-research/bert makes them.

All functions are pure: documents go in, masked pairs come out.
"""
