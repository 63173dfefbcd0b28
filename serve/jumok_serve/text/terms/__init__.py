"""Terms of a request: glossary entries, and parts of a text that are copied; stored glossaries."""

from jumok_serve.text.terms.glossary import Glossary, Placeholders, Terminology, terminology
from jumok_serve.text.terms.store import GlossaryStore

__all__ = ["Glossary", "GlossaryStore", "Placeholders", "Terminology", "terminology"]
