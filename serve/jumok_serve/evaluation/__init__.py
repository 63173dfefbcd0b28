"""Evaluation of a model on parallel text."""
