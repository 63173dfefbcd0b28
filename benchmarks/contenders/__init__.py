"""The programs that a benchmark compares, each run in a process of its own."""
