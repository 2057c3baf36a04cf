"""What a dataset holds: instances for people, deep checks, and the report."""
