"""Choice of a glossary's dictionary by languages."""

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.glossaries.stored import GlossaryDictionary, StoredGlossary
from jumok_serve.manifest.language_codes import primary_language, tag_key


def of_pair(dictionary: GlossaryDictionary) -> tuple[str, str]:
    """Return the languages of a dictionary in one spelling."""
    return tag_key(dictionary.source_language), tag_key(dictionary.target_language)


def choose(glossary: StoredGlossary, source_language: str, target_language: str) -> int:
    """Return the number of the dictionary for a pair: equal tags first, then equal languages, then any language.

    A language that is empty fits all dictionaries.

    Raises:
        InvalidArgumentError: no dictionary fits, or several without a language to choose by.
    """
    wanted = (source_language, target_language)
    ranks = [
        (sum(_distance(own, other) for own, other in zip(of_pair(dictionary), wanted, strict=True)), number)
        for number, dictionary in enumerate(glossary.dictionaries)
    ]
    fitting = sorted(rank for rank in ranks if rank[0] < _NONE)
    if not fitting or (not any(wanted) and len(fitting) > 1):
        pairs = ", ".join(
            f"{one.source_language or 'any'} to {one.target_language or 'any'}" for one in glossary.dictionaries
        )
        lacks = f"from {source_language or 'any'} to {target_language or 'any'}" if any(wanted) else "of one pair alone"
        raise InvalidArgumentError(
            f"glossary: {glossary.name!r} has no entries {lacks}; it has {pairs}: choose one", field="glossary"
        )
    return fitting[0][1]


_NONE = 100
"""A distance beyond all others."""


def _distance(own: str, wanted: str) -> int:
    if own == tag_key(wanted) or not wanted:
        return 0
    if not own:
        return 3
    return 1 if primary_language(own) == primary_language(wanted) else _NONE
