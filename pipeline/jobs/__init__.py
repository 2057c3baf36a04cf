"""Holds the Beam graphs of a build, and runs and guards them."""
