"""Terms over a pivot language: the first model copies them, the second translates the copies."""

from collections.abc import Set
from dataclasses import replace
from typing import NamedTuple

from jumok_proto.results import AppliedTerm, Translation
from jumok_serve.tasks.terms import TermFinder, TermMatch


class TermCopies(NamedTuple):
    """The terms of a request, to be copied; a `TermFinder`."""

    terms: TermFinder

    def find(self, text: str) -> list[TermMatch]:
        """Return the terms of a text, each with itself as its target."""
        return [match._replace(targets=(text[match.first : match.after],)) for match in self.terms.find(text)]


class _Carried(NamedTuple):
    """The terms of a request that the pivot has copies of; a `TermFinder`.

    Attributes:
        sources: the copied terms, case-folded; a word of the pivot language may look like another term.
    """

    terms: TermFinder
    sources: Set[str]

    def find(self, text: str) -> list[TermMatch]:
        """Return the terms whose copies are in a text."""
        return [one for one in self.terms.find(text) if text[one.first : one.after].casefold() in self.sources]


def carried_terms(terms: TermFinder | None, pivot: Translation) -> TermFinder | None:
    """Return the finder of the copies in a translation by the first model, or None without any."""
    sources = {one.source.casefold() for one in pivot.hypotheses[0].terms if one.satisfied}
    return _Carried(terms, sources) if terms is not None and sources else None


def terms_over_pivot(terms: TermFinder | None, pivot: Translation, translation: Translation) -> Translation:
    """Return a translation by the second model with the terms of the first model's text.

    Their places are in the text of the first model and in the translation. A term that the first model could not copy
    is not satisfied.
    """
    copied = pivot.hypotheses[0].terms
    if terms is None or not copied:
        return translation
    hypotheses = []
    for hypothesis in translation.hypotheses:
        waiting: dict[str, list[AppliedTerm]] = {}
        for one in reversed(hypothesis.terms):
            waiting.setdefault(one.source.casefold(), []).append(one)
        joined = []
        for one in copied:
            of_copy = waiting.get(one.source.casefold()) if one.satisfied else None
            if of_copy:
                joined.append(replace(of_copy.pop(), source=one.source, source_span=one.source_span))
            else:
                targets = next((match.targets for match in terms.find(one.source)), one.targets)
                joined.append(replace(one, targets=targets, satisfied=False, target_span=None))
        hypotheses.append(replace(hypothesis, terms=tuple(joined)))
    return replace(translation, hypotheses=tuple(hypotheses))
