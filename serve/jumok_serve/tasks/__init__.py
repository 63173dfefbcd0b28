"""Tasks: translation, scoring and alignment of texts."""
