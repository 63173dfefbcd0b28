"""Verification of exported graphs against PyTorch."""
