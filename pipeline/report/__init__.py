"""What a dataset holds, in numbers and as a page: measured once, kept in report.json, shown as text and as HTML.

May import: stdlib, numpy, pyarrow, tokenizer, pipeline.inspect, pipeline.shards and the pure modules of pipeline.
"""
