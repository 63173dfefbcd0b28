"""Processing of texts before and after the model."""
