"""Makes a dataset without the instances of some documents (docs/forgetting.md).

Only the shards that hold one of the documents are written anew. All others are copied as they are.
"""
