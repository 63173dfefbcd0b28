"""Terms of a request: glossary entries, and parts of a text that are copied; stored glossaries."""

from jumok_serve.text.terms.finder import Terminology, terminology
from jumok_serve.text.terms.glossary import Glossary
from jumok_serve.text.terms.placeholders import Placeholders
from jumok_serve.text.terms.store import GlossaryStore

__all__ = ["Glossary", "GlossaryStore", "Placeholders", "Terminology", "terminology"]
