"""The engine: scheduling and continuous batching."""
