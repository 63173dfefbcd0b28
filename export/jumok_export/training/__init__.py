"""Training of translation models, from a corpus to a checkpoint."""
