"""Settings from flags and YAML files, one line for each mistake."""
