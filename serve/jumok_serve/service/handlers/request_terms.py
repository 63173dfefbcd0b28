"""Terms of a request: read when a text is tokenized, which may be in a thread."""

from functools import lru_cache
from typing import Final, NamedTuple

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.term_conversion import kinds_from_proto
from jumok_proto.v1 import translation_pb2
from jumok_serve.tasks.terms import TermFinder, TermMatch
from jumok_serve.text.terms import Glossary, Placeholders, Terminology

MAX_REQUEST_ENTRIES: Final = 1000
"""Most glossary entries of a request."""
MAX_CACHED: Final = 8


class RequestTerms(NamedTuple):
    """Serialized glossary and parts to copy of a request; a `TermFinder`."""

    glossary: bytes
    do_not_translate: bytes

    def find(self, text: str) -> list[TermMatch]:
        """Return the terms of a text; raises InvalidArgumentError if the request's terms cannot be used."""
        return _terminology(self).find(text)


def request_terms(
    glossary: translation_pb2.Glossary,
    do_not_translate: translation_pb2.DoNotTranslate,
    stored: TermFinder | None = None,
) -> TermFinder | None:
    """Return the terms of a request, or None without any.

    Args:
        stored: the stored glossary that the request names.

    Raises:
        InvalidArgumentError: too many entries.
    """
    if len(glossary.entries) > MAX_REQUEST_ENTRIES:
        raise InvalidArgumentError(
            f"glossary: a request takes at most {MAX_REQUEST_ENTRIES} entries, got {len(glossary.entries)}: send those "
            "of its texts",
            field="glossary",
        )
    if not glossary.entries and not do_not_translate.kinds and not do_not_translate.patterns:
        return stored
    terms = RequestTerms(
        translation_pb2.Glossary(entries=glossary.entries).SerializeToString(), do_not_translate.SerializeToString()
    )
    return terms if stored is None else Terminology(terms, stored)


@lru_cache(MAX_CACHED)
def _terminology(terms: RequestTerms) -> Terminology:
    """Read terms; cached, as many requests send the same."""
    entries = dict[str, tuple[str, ...]]()
    for entry in translation_pb2.Glossary.FromString(terms.glossary).entries:
        if entry.source in entries:
            raise InvalidArgumentError(
                f"glossary: two entries match {entry.source!r}: put all target terms into one entry", field="glossary"
            )
        entries[entry.source] = tuple(entry.targets)
    copied = translation_pb2.DoNotTranslate.FromString(terms.do_not_translate)
    try:
        kinds = kinds_from_proto(copied.kinds)
    except ValueError as error:
        raise InvalidArgumentError(str(error), field="do_not_translate") from error
    return Terminology(Placeholders(kinds, copied.patterns), Glossary(entries))
