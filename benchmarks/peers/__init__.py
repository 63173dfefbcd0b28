"""Servers around CTranslate2 as its users write them: what ``jumok serve`` is measured against."""
