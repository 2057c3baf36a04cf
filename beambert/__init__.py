"""`beambert`: the commands of the builder and of the trainer as one installed program."""
