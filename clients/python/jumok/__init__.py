"""The Python SDK of jumok."""
