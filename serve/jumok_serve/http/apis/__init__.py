"""HTTP APIs, one module each."""
