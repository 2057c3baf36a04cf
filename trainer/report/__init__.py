"""`python -m trainer report RUN ...`: the curves of runs as one page (docs/watching.md)."""
