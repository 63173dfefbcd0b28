"""Channels, retries and calls."""
