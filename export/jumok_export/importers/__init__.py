"""Importers of other projects' checkpoints."""
