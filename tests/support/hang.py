"""The time after which a test counts as hung, whatever else the machine does."""

HANG_S = 1500.0
"""Seconds; below pytest's own timeout, so that a hung subprocess is reported with its output."""
