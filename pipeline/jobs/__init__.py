"""The Beam graphs, how they are run, and the workers that run them."""
