"""Detection of languages, among all that the detector knows."""

import re
import threading
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from jumok_proto.errors import InvalidArgumentError, JumokError, LanguageNotFoundError
from jumok_proto.results import DetectedLanguage, FinishReason, Hypothesis, Translation
from jumok_serve.manifest.language_names import language_name
from jumok_serve.manifest.languages import MAX_LISTED, Languages, primary_language
from jumok_serve.text.holes import DEFAULT_KINDS, find_holes, without

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

MAX_CHARACTERS: Final = 2000
"""Characters of a text that are looked at; 1 ms."""
LEAST_CONFIDENCE: Final = 0.01
"""Least confidence of a language that is listed."""
EXPECTED: Final = 10
"""Weight of the languages of a request or a server; each other language has weight 1.

The more it is, the fewer short texts of these languages count as others, and the more of others as these; see
`docs/detection.md`."""
UNDETERMINED: Final = "und"
"""Tag of a text whose language is not known."""
_NOTHING: Final = "zxx"
"""The detector's label of texts that are no language."""
_OTHER_NAMES: Final = {"nb": "no", "fil": "tl", "iw": "he", "prs": "fa", "in": "id"}
"""Names that the detector has for languages, by their primary subtags."""
_SCRIPTS: Final = {
    "LATIN CYRILLIC ARABIC": "az bs crh ha kk ku ms sr tg tk tt uz uzs",
    "CYRILLIC MONGOLIAN": "mn",
    "ARABIC": "ar ary arz fa ps sd sdh ug ur",
    "CJK HIRAGANA KATAKANA": "ja",
    "CJK BOPOMOFO": "wuu yue zh",
    "CYRILLIC": "ba be bg ky mk ru uk",
    "DEVANAGARI": "gom hi mr ne sa",
    "ETHIOPIC": "am",
    "ARMENIAN": "hy",
    "BENGALI": "as bn",
    "GEORGIAN": "ka",
    "GREEK": "el grc",
    "GUJARATI": "gu",
    "GURMUKHI ARABIC": "pa",
    "HANGUL": "ko",
    "HEBREW": "hbo he",
    "KANNADA": "kn",
    "KHMER": "km",
    "LAO": "lo",
    "MALAYALAM": "ml",
    "MYANMAR": "my",
    "ORIYA": "or",
    "SINHALA": "si",
    "TAMIL": "ta",
    "TELUGU": "te",
    "THAI": "th",
    "TIBETAN": "dz",
}
"""Languages that are written in other scripts than Latin, by the beginnings of Unicode's names of their letters."""
_SCRIPTS_OF: Final = {name: tuple(scripts.split()) for scripts, names in _SCRIPTS.items() for name in names.split()}
_TAG: Final = re.compile(r"<[^<>]*>")
_WORD: Final = re.compile(r"[!-~]+")
_CODE: Final = re.compile(r"[@{}\\%$]|://|www\.|/.*/")
"""Mark of an ASCII word that is an address, a path or a placeholder."""
_loading = threading.Lock()


class Source(NamedTuple):
    """The language of a text, and what can be done with it.

    Attributes:
        language: the source language, as a model spells it, or the language that a model cannot translate.
        is_translated: True if a model translates it; False for a text to keep.
    """

    language: str
    confidence: float
    is_translated: bool


def rank_languages(text: str, tags: Iterable[str]) -> list[DetectedLanguage]:
    """Return the possible languages of a text, best first; none of a text without letters.

    Confidence is shared among all languages that the detector knows, and ``tags`` are expected more than others. Of
    several tags of one language, as of two scripts, the shortest stands for all.
    """
    ranked = _ranked(text, {_name(tag): tag for tag in sorted(tags, key=lambda tag: (len(tag), tag), reverse=True)})
    return [one for one in ranked if one is ranked[0] or one.confidence >= LEAST_CONFIDENCE]


def detect_source(
    text: str, sources: Sequence[str], target: str, *, copies: bool = False, field: str = "contents[0]"
) -> Source:
    """Return the language of a text to translate.

    A text without letters has the first source, with confidence 0, and is not translated.

    Args:
        sources: languages that can be translated into the target.
        copies: True to keep texts in other languages.
        field: field of the text in its request.

    Raises:
        InvalidArgumentError: it is neither a source nor the target.
    """
    spelled = {_name(tag): tag for tag in (target, *reversed(sources))}
    ranked = _ranked(text, spelled)
    if not ranked:
        return Source(sources[0], 0.0, is_translated=False)
    language, confidence = ranked[0]
    if language in sources:
        return Source(language, confidence, is_translated=True)
    if language == target or copies:
        return Source(language, confidence, is_translated=False)
    problem = "is in a language that is not known" if language == UNDETERMINED else f"is in {_described(language)}"
    raise InvalidArgumentError(
        f"{field} {problem}, but 'auto' translates into {_described(target)} from {_listed(sources)} only: leave the "
        "text out, name its source language if that is wrong, or serve a model of this pair",
        field=field,
    )


def unchanged(text: str, source: Source, target: str) -> Translation:
    """Return a text as its own translation."""
    hypothesis = Hypothesis(
        text=text, score=0.0, tokens=(), token_ids=(), token_scores=(), finish_reason=FinishReason.EOS
    )
    return Translation(
        hypotheses=(hypothesis,),
        source_token_count=0,
        source_truncated=False,
        source_language=source.language,
        target_language=target,
        model="",
        model_version="",
        source_confidence=source.confidence,
    )


def sources_into(languages: Languages, target: str | None) -> tuple[list[str], str]:
    """Return the source languages of a model with a target, or its default target, and this target.

    The default source is the first.

    Raises:
        LanguageNotFoundError: there are none.
        InvalidArgumentError: no target is named, and the model has no default.
    """
    default = languages.default
    first = [default.source] if default is not None else []
    targets: dict[str, str] = {}
    problem: JumokError = LanguageNotFoundError("the model has no source language")
    for source in dict.fromkeys((*first, *languages.sources)):
        try:
            targets[source] = languages.direction(source, target).target
        except LanguageNotFoundError as error:
            problem = error
    if not targets:
        raise problem
    return list(targets), next(iter(targets.values()))


def group_by_language(sources: Sequence[Source]) -> dict[str, list[int]]:
    """Return the indices of the texts that are translated, by language."""
    groups: dict[str, list[int]] = {}
    for index, one in enumerate(sources):
        if one.is_translated:
            groups.setdefault(one.language, []).append(index)
    return groups


_OfLanguage: TypeAlias = tuple[Sequence[int], Sequence[Translation]]
"""Indices of the texts in a language, and their translations."""


def in_order(
    texts: Sequence[str], sources: Sequence[Source], target: str, translated: Iterable[_OfLanguage]
) -> list[Translation]:
    """Return the translations of texts in their order, and texts that are not translated as they are."""
    found = {index: one for indices, of_language in translated for index, one in zip(indices, of_language, strict=True)}
    return [
        replace(found.pop(index), source_confidence=source.confidence)
        if source.is_translated
        else unchanged(text, source, target)
        for index, (text, source) in enumerate(zip(texts, sources, strict=True))
    ]


def load_detector() -> None:
    """Load the detector, which else the first detection does."""
    _model()


def _ranked(text: str, expected: Mapping[str, str]) -> list[DetectedLanguage]:
    """Return all languages that a text can be in, best first; none of a text that is no language.

    Args:
        expected: tags of the languages that are expected, by the detector's names.
    """
    text = _TAG.sub(" ", text[:MAX_CHARACTERS])
    # Braces of a message are around language.
    text = _WORD.sub(
        _blanked, without(text, (hole[:2] for hole in find_holes(text, DEFAULT_KINDS - {"braces", "icu"})))
    )
    scripts = {_script(letter) for letter in set(text) if letter.isalpha()}
    if not scripts:
        return []
    weighted = {
        name: probability * (EXPECTED if name in expected else 1)
        for name, probability in _model().rank(text)
        if not scripts.isdisjoint(_SCRIPTS_OF.get(name, ("LATIN",)))
    }
    total = sum(weighted.values())
    if not total:
        return [DetectedLanguage(UNDETERMINED, 0.0)]
    ranked = sorted(weighted, key=lambda name: (-weighted[name], name not in expected))
    if ranked[0] == _NOTHING:
        return []
    return [DetectedLanguage(expected.get(name, name), weighted[name] / total) for name in ranked if name != _NOTHING]


def _blanked(word: re.Match[str]) -> str:
    return " " if _CODE.search(word[0]) else word[0]


def _script(letter: str) -> str:
    """Return the first word of a letter's name in Unicode, which is its script."""
    return unicodedata.name(letter, "").partition(" ")[0]


def _name(tag: str) -> str:
    """Return the detector's name of a language."""
    language = primary_language(tag)
    return _OTHER_NAMES.get(language, language)


def _described(tag: str) -> str:
    name = language_name(tag)
    return tag if name == tag else f"{name} ({tag})"


def _listed(sources: Sequence[str]) -> str:
    more = f" and {len(sources) - MAX_LISTED} more" if len(sources) > MAX_LISTED else ""
    return ", ".join(map(_described, sources[:MAX_LISTED])) + more


@lru_cache(maxsize=1)
def _loaded() -> "LanguageIdentifier":
    """Load the detector: 0.7 s, 76 MB."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # noqa: PLC0415 - imported when it is needed

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def _model() -> "LanguageIdentifier":
    with _loading:  # two threads would load it twice
        return _loaded()
