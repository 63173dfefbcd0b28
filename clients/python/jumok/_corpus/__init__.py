"""Corpora of any size in bounded memory."""
