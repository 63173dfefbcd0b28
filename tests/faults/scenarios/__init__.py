"""Scenarios: one module a group."""
