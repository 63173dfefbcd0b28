"""Fault scenarios for `jumok serve`: one module a group."""
