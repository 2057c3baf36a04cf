"""The process of a rank: how ranks meet, their devices and GPUs, and how they are told to stop."""
