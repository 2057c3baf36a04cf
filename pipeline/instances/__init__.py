"""Documents of a bucket in, masked pairs out, as google-research/bert makes them; pure."""
