"""The schema of ``manifest.json``."""
