"""Detection of languages, among those of models."""

import copy
import re
import threading
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from jumok_proto.errors import LanguageNotFoundError
from jumok_proto.results import DetectedLanguage
from jumok_serve.manifest.languages import Languages, primary_language

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

MAX_CHARACTERS: Final = 2000
"""Characters of a text that are looked at; 1 ms."""
LEAST_CONFIDENCE: Final = 0.01
"""Least confidence of a language that is listed."""
FOREIGN: Final = 0.05
"""Probability, of that of the best of all languages, below which a text counts as one of a language without a model.

With models of English and German it was less for all of 400 Korean and 19 other foreign texts, and for 0.3 % of texts
of their own (2 % of single words)."""
_OTHER_NAMES: Final = {"nb": "no", "fil": "tl", "iw": "he", "prs": "fa", "in": "id"}
"""Names that the identifier has for languages, by their primary subtags."""
_TAG: Final = re.compile(r"<[^<>]*>")
_loading = threading.Lock()
_LETTER: Final = re.compile(r"[^\W\d_]")


def rank_languages(text: str, tags: Iterable[str]) -> list[DetectedLanguage]:
    """Return the possible languages of a text, best first; none of a text without letters.

    Confidence is shared among them; a text in a language that is not among them has hardly any. Languages that the
    identifier does not know are left out. Of several tags of one language, as of two scripts, the shortest stands for
    all.
    """
    ranked = _ranked(text, tags)
    return [one for one in ranked if one is ranked[0] or one.confidence >= LEAST_CONFIDENCE]


def detect_source(text: str, tags: Collection[str], sources: Sequence[str]) -> DetectedLanguage:
    """Return the most probable of some source languages.

    Args:
        tags: languages among which confidence is shared.
        sources: possible languages; the first stands for texts without letters, with confidence 0.
    """
    for one in _ranked(text, {*tags, *sources}):
        for source in sources:
            if _name(source) == _name(one.language):
                return DetectedLanguage(source, one.confidence)
    return DetectedLanguage(sources[0], 0.0)


def sources_into(languages: Languages, target: str | None) -> list[str]:
    """Return the source languages of a model with a target, or its default target; the default source first.

    Raises:
        LanguageNotFoundError: there are none.
        InvalidArgumentError: no target is named, and the model has no default.
    """
    default = languages.default
    first = [default.source] if default is not None else []
    usable, problem = [], LanguageNotFoundError("the model has no source language")
    for source in dict.fromkeys((*first, *languages.sources)):
        try:
            languages.direction(source, target)
        except LanguageNotFoundError as error:
            problem = error
        else:
            usable.append(source)
    if not usable:
        raise problem
    return usable


def group_by_language(detected: Sequence[DetectedLanguage]) -> dict[str, list[int]]:
    """Return the indices of texts by language."""
    groups: dict[str, list[int]] = {}
    for index, one in enumerate(detected):
        groups.setdefault(one.language, []).append(index)
    return groups


def _ranked(text: str, tags: Iterable[str]) -> list[DetectedLanguage]:
    by_name: dict[str, str] = {}
    for tag in sorted(tags, key=lambda tag: (len(tag), tag)):
        by_name.setdefault(_name(tag), tag)
    known = _known_names().intersection(by_name)
    beginning = _TAG.sub(" ", text[:MAX_CHARACTERS])
    if not known or _LETTER.search(beginning) is None:
        return []
    ranked = _identifier(frozenset(known)).rank(beginning)
    share = _likeness(beginning, ranked[0][0])
    return [DetectedLanguage(by_name[name], share * confidence) for name, confidence in ranked]


def _likeness(text: str, name: str) -> float:
    """Return 1, or if a text counts as foreign, the probability of a language by that of the best of all."""
    probabilities = dict(_model().rank(text))
    ratio = float(probabilities[name] / max(probabilities.values()))
    return ratio if ratio < FOREIGN else 1.0


def _name(tag: str) -> str:
    """Return the identifier's name of a language."""
    language = primary_language(tag)
    return _OTHER_NAMES.get(language, language)


@lru_cache(maxsize=1)
def _known_names() -> frozenset[str]:
    with _loading:  # two threads would load the model twice
        return frozenset(_model().labels)


@lru_cache(maxsize=1)
def _model() -> "LanguageIdentifier":
    """Load the identifier of all its languages: 1 s, 120 MB."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # noqa: PLC0415 - imported when it is needed

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


@lru_cache(maxsize=16)
def _identifier(names: frozenset[str]) -> "LanguageIdentifier":
    """Return an identifier of some languages; it shares most of its memory with the whole one."""
    identifier = copy.copy(_model())
    identifier.set_languages(sorted(names))
    return identifier
