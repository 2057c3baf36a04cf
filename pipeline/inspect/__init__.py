"""Shows people what a dataset holds: its instances, deep checks of them, and the report."""
