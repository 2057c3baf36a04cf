"""Flink, Spark, Prism and Dask on this machine, for tests and soaks: what is installed, and how each is started."""
