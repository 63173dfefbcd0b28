"""Stored glossaries, and the text of their entries."""
