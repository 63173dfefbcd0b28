"""Terms of a request: glossary entries, and parts of a text that are copied."""

from jumok_serve.text.terms.finder import Terminology, terminology
from jumok_serve.text.terms.glossary import Glossary
from jumok_serve.text.terms.placeholders import Placeholders

__all__ = ["Glossary", "Placeholders", "Terminology", "terminology"]
