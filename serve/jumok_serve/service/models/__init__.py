"""The models that a server holds."""
