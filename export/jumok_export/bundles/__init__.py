"""Export of verified bundles."""
