"""Checkpoints in the formats of other projects, and a local hub."""
