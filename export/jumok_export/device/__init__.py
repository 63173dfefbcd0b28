"""Graph variants for GPUs."""
