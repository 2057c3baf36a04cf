"""What a dataset holds: single instances for people, deep checks, and the report in numbers and as a page."""
