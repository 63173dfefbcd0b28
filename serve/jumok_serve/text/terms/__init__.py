"""Terms of a request: glossary entries, and parts of a text that are copied; stored glossaries."""

from jumok_serve.text.terms.glossary import (
    PLACEHOLDERS,
    Glossary,
    Placeholders,
    Terminology,
    count_marks,
    placeholders_of,
    terminology,
)
from jumok_serve.text.terms.store import GlossaryStore

__all__ = [
    "PLACEHOLDERS",
    "Glossary",
    "GlossaryStore",
    "Placeholders",
    "Terminology",
    "count_marks",
    "placeholders_of",
    "terminology",
]
