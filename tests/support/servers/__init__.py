"""Servers and models that a test controls, certificates, and a relay."""
