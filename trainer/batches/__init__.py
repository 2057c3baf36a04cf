"""Blocks unpacked, rows gathered from them, masked anew if asked, and packed in micro-batches."""
