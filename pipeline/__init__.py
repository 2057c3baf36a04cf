"""Documents to shards, the half of the system that runs on Beam.

From the ground up: storage/ reads and writes anywhere, shards/ is the contract with the trainer,
documents/ reads formats, text/ cleans and splits, tokens/ keeps encoded documents, instances/ makes
pairs and masks of them, jobs/ are the Beam graphs, stages/ is what `build` runs, inspect/ looks at
the result. tests/project/test_layering.py says who may import whom.
"""
