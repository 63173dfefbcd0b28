"""A model on disk: bundles, shortlists and the model root."""
