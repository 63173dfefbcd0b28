"""Markup of texts, and rules for its elements."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

MarkupKind: TypeAlias = Literal["html", "xml"]
"""``"html"``: a document or fragment of HTML, with any errors; ``"xml"``: well-formed XML, or a fragment of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkupRules:
    """Rules for elements, by name."""

    ignore_tags: tuple[str, ...] = ()
    """Elements whose content is not translated, besides ``code``, ``pre``, ``script``, ``style`` and others of HTML."""
    non_splitting_tags: tuple[str, ...] = ()
    """Elements inside of a sentence, although HTML has them as blocks."""
    splitting_tags: tuple[str, ...] = ()
    """Elements that separate sentences, besides HTML's blocks."""
