"""Models, graphs and bundles, right and wrong ones."""
