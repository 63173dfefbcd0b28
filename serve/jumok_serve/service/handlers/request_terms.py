"""Terms of a request: read when a text is tokenized, which may be in a thread."""

import threading
from collections import OrderedDict
from typing import Final, NamedTuple

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.term_conversion import kinds_from_proto as placeholder_kinds_from_proto
from jumok_proto.v1 import translation_pb2
from jumok_serve.tasks.terms import TermFinder, TermMatch
from jumok_serve.text.terms import Glossary, Placeholders, Terminology

MAX_REQUEST_ENTRIES: Final = 1000
"""Most glossary entries of a request."""
MAX_KEPT_BYTES: Final = 16 * 2**20
"""Memory of the terms that are kept after they were read; those of a single request are kept in any case."""
MIN_BYTES: Final = 4096
"""Memory of the terms of a request, besides its entries and patterns."""


class RequestTerms(NamedTuple):
    """Serialized glossary and parts to copy of a request; a `TermFinder`."""

    glossary: bytes
    do_not_translate: bytes

    def find(self, text: str) -> list[TermMatch]:
        """Return the terms of a text; raises InvalidArgumentError if the request's terms cannot be used."""
        return READ.get(self).find(text)


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


class _Read(NamedTuple):
    """Terms that were read, and the memory that they take."""

    terminology: Terminology
    num_bytes: int


class ReadTerms:
    """The terms that were used last; any thread may call the methods.

    All texts of a request use its terms, and many requests send the same ones.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[RequestTerms, _Read] = OrderedDict()  # last used last
        self._num_bytes = 0

    def get(self, terms: RequestTerms) -> Terminology:
        """Return terms, read if they are not kept; raises InvalidArgumentError if they cannot be used."""
        with self._lock:
            found = self._kept.get(terms)
            if found is not None:
                self._kept.move_to_end(terms)
                return found.terminology
        found = _read(terms)
        with self._lock:
            if terms not in self._kept:  # another thread may have read them too
                self._kept[terms] = found
                self._num_bytes += found.num_bytes
            while len(self._kept) > 1 and self._num_bytes > MAX_KEPT_BYTES:
                _, dropped = self._kept.popitem(last=False)
                self._num_bytes -= dropped.num_bytes
        return found.terminology


READ: Final = ReadTerms()


def _read(terms: RequestTerms) -> _Read:
    entries = dict[str, tuple[str, ...]]()
    for entry in translation_pb2.Glossary.FromString(terms.glossary).entries:
        if entry.source in entries:
            raise InvalidArgumentError(
                f"glossary: two entries match {entry.source!r}: put all target terms into one entry", field="glossary"
            )
        entries[entry.source] = tuple(entry.targets)
    copied = translation_pb2.DoNotTranslate.FromString(terms.do_not_translate)
    try:
        kinds = placeholder_kinds_from_proto(copied.kinds)
    except ValueError as error:
        raise InvalidArgumentError(str(error), field="do_not_translate") from error
    glossary = Glossary(entries)
    placeholders = Placeholders(kinds, copied.patterns)
    num_bytes = MIN_BYTES + len(terms.glossary) + len(terms.do_not_translate)
    return _Read(Terminology(placeholders, glossary), num_bytes + glossary.num_bytes + placeholders.num_bytes)
