"""Tools of the scenarios: plans, servers, texts, and calls made by hand."""
