"""DeepSpeed around the model: it partitions and reduces, what a step is we say."""
