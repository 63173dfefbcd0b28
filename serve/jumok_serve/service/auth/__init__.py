"""Tokens and TLS."""
