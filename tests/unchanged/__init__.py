"""Comparison of two checkouts: a refactoring must change no answer, error, help text or path of a request."""
