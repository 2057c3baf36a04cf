"""Saves the checkpoints of a training run, copies them to a URL, and finds and loads them again.

A checkpoint is a folder of files with the weights, the optimizer's state and the progress of the
run, from which training can continue.
"""
