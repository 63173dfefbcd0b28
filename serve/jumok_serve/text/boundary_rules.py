"""Rules for full stops that end no sentence, and for markers of lists."""

import re

from jumok_serve.text.abbreviations import abbreviations, sentence_starters, titles

REACH = 64
"""Characters on each side of a boundary that the rules look at."""

_LAST_WORD = re.compile(r"(?:^|[\s(\[{«„“\"'])([^\s(\[{«„“\"']+?)\.\s*$")
_FIRST_WORD = re.compile(r"\w+")
_FIRST_LETTER = re.compile(r"[^\W\d_]")
_NUMBER = re.compile(r"\d{1,2}")
_VOWEL = re.compile("[aeiouyäöüàâéèêëîïôùûáíóúãõåæøœаеёиоуыэюяіїєаα-ω]", re.IGNORECASE)  # noqa: RUF001
_OPENING = "([{"
_MARKER = re.compile(
    r"""(?x)
    \(? (?: \d{1,3}(?:\.\d{1,3})* | [ivxlIVXL]{1,7} | [a-zA-Z] ) \)  # 1)  (iv)  a)
    | [\u2022\u2023\u25aa\u25e6\u25cf\u00b7*\u2013\u2014-]           # a bullet
    """
)
_STOPPED_MARKER = re.compile(r"(?:\d{1,3}(?:\.\d{1,3})*|[ivxl]{1,7}|[IVXL]{2,7}|[a-z])\.")


def ends_sentence(line: str, begin: int, end: int, language: str) -> bool:
    """True if a sentence ends at a boundary that the library found.

    Args:
        begin, end: indices of the sentence in the line; white space after it belongs to it.
        language: ISO 639 code of one language, in two letters if possible.
    """
    found = _LAST_WORD.search(line[max(begin, end - REACH) : end])
    if found is None:
        return True
    word, after = found[1], line[end : end + REACH]
    alone = line[begin:end].strip() if end - begin <= REACH else ""
    if _is_marker(alone):
        return True
    if word.lower() in titles(language) or (word.isupper() and len(alone) == 2):
        return False  # a title, or an initial alone
    if after[:1].isdigit() or after[:1] in _OPENING:
        return not _is_abbreviation(word, language)
    next_word = found[0] if (found := _FIRST_WORD.match(after)) else ""
    if next_word[:1].islower():
        # Text that begins sentences with capitals would do so here; names such as iPhone are no evidence.
        first = _FIRST_LETTER.search(line, begin, min(end, begin + REACH))
        capitals = first is not None and first[0].isupper() and next_word.islower()
        return not (capitals or _is_abbreviation(word, language))
    ordinal = bool(sentence_starters(language)) and _NUMBER.fullmatch(word) is not None and next_word != ""
    return not ordinal or next_word.lower() in sentence_starters(language)


def marker_length(sentence: str) -> int:
    """Return the length of a list's marker at the beginning of a sentence, white space after it included.

    A marker with a full stop is a sentence to the library: it has the length of the whole sentence.
    """
    if _is_marker(sentence):
        return len(sentence)
    found = _MARKER.match(sentence)
    if found is None:
        return 0
    rest = sentence[found.end() :]
    return len(sentence) - len(rest.lstrip()) if rest[:1].isspace() else 0


def _is_marker(sentence: str) -> bool:
    return bool(_MARKER.fullmatch(sentence) or _STOPPED_MARKER.fullmatch(sentence))


def _is_abbreviation(word: str, language: str) -> bool:
    """True if a word is a known abbreviation, or written like one."""
    if word.lower() in abbreviations(language) or "." in word:
        return True
    return word.isalpha() and len(word) <= 4 and not _VOWEL.search(word)
