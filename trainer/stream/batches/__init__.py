"""Gathers rows of blocks, masks them anew if asked to, and packs them into micro-batches."""
