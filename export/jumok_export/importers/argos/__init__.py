"""Import of Argos Translate packages as bundles."""
