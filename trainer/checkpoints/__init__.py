"""A run's checkpoints: copied and written in the background, kept at a URL, found again.

read.py says what lies where, write.py makes it, saver.py does so while training goes on, store.py
is the copy at a URL and resume.py chooses where a run goes on.
"""
