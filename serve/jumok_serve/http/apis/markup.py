"""Texts in HTML or XML that have no markup: any model translates them, with or without an aligner."""

import html
from collections.abc import Iterable


def are_plain(texts: Iterable[str]) -> bool:
    """True if no text has a tag or an entity."""
    return not any("<" in text or "&" in text for text in texts)


def escape(text: str) -> str:
    """Escape the translation of a plain text, as a model may write any character."""
    return html.escape(text, quote=False)
