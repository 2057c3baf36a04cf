"""Reads and writes files on local disks and on any store that fsspec can reach.

A file is written whole or not at all, and a request that fails for a passing reason is repeated.
"""
