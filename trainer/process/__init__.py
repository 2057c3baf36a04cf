"""The process a rank is: ranks, its device and GPU, and how it is told to stop."""
