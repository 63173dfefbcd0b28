"""Checks of decoding on a GPU."""
