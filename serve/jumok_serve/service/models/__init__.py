"""Models of a server: registry, loading, description."""
