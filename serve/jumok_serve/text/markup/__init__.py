"""HTML and XML: plain text for the model, and tags around its translation."""
