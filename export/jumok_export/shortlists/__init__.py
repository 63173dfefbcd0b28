"""Lexical shortlists: sources, alignment and the lexicon."""
