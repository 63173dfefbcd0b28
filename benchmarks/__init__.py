"""Benchmarks: speed and memory against peers in the same run, and translation quality."""
