"""Settings from flags and YAML files, one line for each mistake: the command lines of both programs."""
