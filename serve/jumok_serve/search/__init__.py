"""Greedy search, beam search and sampling over candidate tokens and scores."""
