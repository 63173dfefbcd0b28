"""The text layer: tags, terms and sentences."""
