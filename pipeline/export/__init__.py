"""A dataset's instances in the files that other trainers read."""
