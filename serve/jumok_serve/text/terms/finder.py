"""Terms of a text: placeholders first, then glossary entries."""

from dataclasses import dataclass

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.text_options import TermOptions
from jumok_serve.tasks.terms import TermMatch
from jumok_serve.text.terms.glossary import Glossary
from jumok_serve.text.terms.placeholders import Placeholders


@dataclass(frozen=True, slots=True)
class Terminology:
    """Glossary and placeholders of a request; a `TermFinder`."""

    glossary: Glossary | None = None
    placeholders: Placeholders | None = None

    def find(self, text: str) -> list[TermMatch]:
        """Return the terms of a text in their order; an entry that overlaps a placeholder does not count."""
        copied = [] if self.placeholders is None else self.placeholders.find(text)
        entries = [] if self.glossary is None else self.glossary.find(text)
        free = [
            one for one in entries if not any(one.first < other.after and other.first < one.after for other in copied)
        ]
        return sorted((*copied, *free))


def terminology(options: TermOptions) -> Terminology | None:
    """Return the terms that options give, or None without any.

    Raises:
        InvalidArgumentError: the glossary or the parts to copy cannot be used.
    """
    glossary = options.get("glossary") or {}
    patterns, kinds = options.get("do_not_translate") or (), options.get("placeholders") or ()
    if not glossary and not patterns and not kinds:
        return None
    if isinstance(patterns, str) or isinstance(kinds, str):
        raise InvalidArgumentError(
            "do_not_translate and placeholders must be sequences of texts, got a text", field="do_not_translate"
        )
    return Terminology(Glossary(glossary), Placeholders(kinds, patterns))
