"""Models, rounds, processes and reports that benchmarks share."""
