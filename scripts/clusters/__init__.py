"""Flink, Spark, Prism and Dask on this machine, for tests and soaks."""
