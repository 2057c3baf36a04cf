"""Documents of a bucket in, pairs with masks out, as google-research/bert makes them. Pure functions, some in C."""
