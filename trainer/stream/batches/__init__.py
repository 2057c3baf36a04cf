"""Rows of blocks gathered, masked anew if asked, and packed in micro-batches."""
