"""The schema of a bundle's manifest."""
