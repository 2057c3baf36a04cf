"""The process a rank is: ranks, its device and GPU, its allocator, and how it is told to stop."""
