"""The programs that a benchmark compares, each in a separate process."""
