"""Terms of a text: placeholders first, then glossary entries."""

from itertools import islice

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.text_options import TermOptions
from jumok_serve.tasks.terms import MAX_TERMS, TermFinder, TermMatch
from jumok_serve.text.terms.glossary import Glossary
from jumok_serve.text.terms.placeholders import Placeholders


class Terminology:
    """Glossaries and placeholders of a request; a `TermFinder`.

    Args:
        finders: the first come first: a term that overlaps one of an earlier finder does not count.
    """

    def __init__(self, *finders: TermFinder) -> None:
        self._finders = finders

    def find(self, text: str) -> list[TermMatch]:
        """Return the terms of a text in their order; of more than `MAX_TERMS` some, and one more than that."""
        found = list[TermMatch]()
        for finder in self._finders:
            earlier = tuple(found)
            others = (
                one
                for one in finder.find(text)
                if not any(one.first < other.after and other.first < one.after for other in earlier)
            )
            found += islice(others, MAX_TERMS + 1 - len(found))
        return sorted(found)


def terminology(options: TermOptions, stored: TermFinder | None = None) -> Terminology | None:
    """Return the terms that options give, or None without any.

    Args:
        stored: a stored glossary, which counts last.

    Raises:
        InvalidArgumentError: the glossary or the parts to copy cannot be used.
    """
    patterns, kinds = options.get("do_not_translate") or (), options.get("placeholders") or ()
    if isinstance(patterns, str) or isinstance(kinds, str):
        raise InvalidArgumentError(
            "do_not_translate and placeholders must be sequences of texts, got a text", field="do_not_translate"
        )
    finders = list[TermFinder]()
    if patterns or kinds:
        finders.append(Placeholders(kinds, patterns))
    if glossary := options.get("glossary"):
        finders.append(Glossary(glossary))
    if stored is not None:
        finders.append(stored)
    return Terminology(*finders) if finders else None
