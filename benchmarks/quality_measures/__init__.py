"""Training runs and measurements of `make quality`, and its page."""
