"""Rules for full stops that end no sentence, and for markers of lists."""

import re
from collections.abc import Iterator

from jumok_serve.text.abbreviations import abbreviations, sentence_starters, titles

REACH = 64
"""Characters on each side of a boundary that the rules look at."""

_LAST_WORD = re.compile(r"(?:^|[\s(\[{«„“\"'])([^\s(\[{«„“\"']+?)\.\s*$")
_FIRST_WORD = re.compile(r"\w+")
_FIRST_LETTER = re.compile(r"[^\W\d_]")
_VOWEL = re.compile("[aeiouyäöüàâéèêëîïôùûáíóúãõåæøœаеёиоуыэюяіїєаα-ω]", re.IGNORECASE)  # noqa: RUF001
_OPENING = "([{"
_SAYS = re.compile(r"[\u2012-\u2015]\s*([^\W\d_])")
_ELIDED = re.compile(r"^\w{1,2}['\u2019]")
_INITIALS = re.compile(r"\w\.-\w")
_ERA = "j.-c"
"""French for Christ; it often ends a sentence, unlike initials of names."""
_NUMBER = re.compile(r"(?<!\S)\d{1,2}\Z")
_AFTER_NUMBER = re.compile(r"\.\s++(?=\S)")
"""Begins with a literal character, which makes the search ten times as fast as one for numbers."""
_BEFORE_ITEM = re.compile(r"[.!?\u2026:;)\"\u201c\u201d\u00bb]\s+\Z")
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
    after = line[end : end + REACH]
    found = _LAST_WORD.search(line[max(begin, end - REACH) : end])
    if found is None:
        says = _SAYS.match(after)  # "Where?" - she asked.
        return says is None or not says[1].islower()
    word = _ELIDED.sub("", found[1])
    alone = line[begin:end].strip() if end - begin <= REACH else ""
    if _is_marker(alone):
        return True
    if _is_name_part(word, language, alone=len(alone) == 2) or _is_inside(word, after, spaced=line[end - 1].isspace()):
        return False
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


def _is_name_part(word: str, language: str, *, alone: bool) -> bool:
    """True for titles and initials, if a name follows them."""
    initials = word.isupper() and (alone or _INITIALS.fullmatch(word) is not None) and word.lower() != _ERA
    return initials or word.lower().rpartition(".-")[2] in titles(language)  # Dipl.-Ing., but not next-gen


def _is_inside(word: str, after: str, *, spaced: bool) -> bool:
    """True if an abbreviation goes on after a full stop without space."""
    return not spaced and (after[:1] == "-" or (after[:1].isalnum() and (len(word) == 1 or "." in word)))


def list_items(line: str) -> Iterator[tuple[int, int]]:
    """Yield the places of the markers ``1.``, ``2.`` and so on of a list inside of a line.

    The first one stands at the beginning or after a sentence, as do the others, in ascending order. One alone makes no
    list: it may be an ordinal.
    """
    before: tuple[int, int] | None = None
    number = 0
    for after in _AFTER_NUMBER.finditer(line):
        found = _NUMBER.search(line, max(0, after.start() - 2), after.start())
        if found is None:
            continue
        place = found.start(), after.end()
        if place[0] and not _BEFORE_ITEM.search(line, max(0, place[0] - 8), place[0]):
            continue
        if int(found[0]) == number + 1 and before is not None:
            if number == 1:
                yield before
            yield place
            before, number = place, number + 1
        elif int(found[0]) == 1:
            before, number = place, 1


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
