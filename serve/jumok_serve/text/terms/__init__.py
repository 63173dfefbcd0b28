"""Terms of a request: glossary entries, and parts of a text that are copied; stored glossaries."""
