"""Hugging Face's side of the comparison: small checkpoints of each family, and what ``generate`` makes of them."""
