"""Tokens, TLS and rate limits."""
