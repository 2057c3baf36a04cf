"""Examines a run before it starts: `plan` estimates its cost, and `doctor` checks every node."""
