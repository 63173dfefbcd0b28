"""Splitting of texts into sentences, and of long sentences into parts."""

import logging
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate, islice

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.errors import ForeignCodeError
from jumok_serve.interrupts import check
from jumok_serve.manifest.languages import primary_language, writes_spaces
from jumok_serve.native import ForeignCode

# ruff: noqa: RUF001


_ANY = """
    approx ca cf col dept ed eds eq eqs est et al etc ex fig figs ft gal ill in incl lb lbs max min no nos nr op oz p
    par pg pl pp pt pts ref refs resp sec sect sq tab tel viz vol vols vs yd yds
"""
_BEFORE_NUMBERS = {
    "en": "app art ch chap jan feb mar apr jun jul aug sept oct nov dec fl para st ver",
    "de": "abb abs abschn anm art aufl bd bde bl bspw bzgl bzw evtl gegr gem ggf hrsg insb jan feb apr jul aug "
    "sept okt nov dez kap mind num rd s sog spez str tsd u usw v vgl z zzgl zz",
    "fr": "art av chap cf éd env fasc janv févr avr juil sept oct nov déc n num paragr réf t v",
    "es": "aprox art av avda cap ed ej fig gral máx mín n núm p pág págs párr tel tít v vol",
    "it": "art cap cfr circa ecc es fig n num pag pagg par s tav v vol",
    "ru": "абз авг апр вв гл дек илл им июл июн кв корп млн млрд напр нояб обл ок окт пер пл прим рис руб сек сент "
    "см ср стр табл тел тыс ул февр экз янв",
    "pt": "art aprox cap ed fig n nº núm pág págs séc tel vol",
    "nl": "afb art bijv blz ca fig hfdst nr par tab",
    "pl": "art im np nr ok pkt por poz prof rys s str tab tj tys ul ust zob",
    "sv": "bl ca enl ex fig kap nr s tab t",
}
_TITLES = {
    "en": "adm brig capt cdr cmdr col cpl dr gen gov hon jr lt maj messrs mr mrs ms mt mx prof pvt rep rev sen "
    "sgt sr st",
    "de": "dipl dr fa fam fr frl gebr hl hr ing kfm mag med phil prof st",
    "fr": "av bd dr drs fg gal imp m me mgr mlle mlles mm mme mmes mr pl pr prof st ste vve",
    "es": "d da dr dra dña excmo excma ing lic prof profa sr sra sres sras srta srtas sta sto ud uds vd vds",
    "it": "arch avv dott dr egr gent geom ill ing mons on prof rag rev sig sigg sigra sra s",
    "ru": "акад бул г гг гор гр д дер доц им к кв ж м о обл оз пер пл пос пр просп проф р рис с св см т тов ул",
    "pt": "dr dra eng exmo exma prof profa sr sra srs sras srta sta sto d",
    "nl": "dhr dr drs ds ing ir mej mevr mr mw prof",
    "pl": "bp dr gen hab ks mgr płk prof ppłk św",
    "sv": "dr fr hr prof",
}
_STARTERS = {
    "de": "aber alle als also am an auch auf aus bei beide bis da damit dabei dafür danach dann darauf darum "
    "das dass dazu dem den denn der deren des deshalb die dies diese dieser dieses doch dort du ein eine "
    "einem einen einer eines einige er es falls für gestern habe haben hat heute hier hinzu ich ihr ihre im in ist "
    "ja jede jeder jedes jedoch jemand jetzt kann kein keine klicken könnte man manche mancher manches mehrere "
    "mit morgen muss nach nachdem nicht niemand nun nur ob oder ohne schon sein seine seit seitdem "
    "sie siehe sind so sobald sollte sonst später trotzdem um und uns unter vgl viele vom von vor wann war waren "
    "warum was weil weiter weitere welche wenn wer werden weshalb wie wieso wir wird wo woher wohin wollte wurde "
    "wurden zu zudem zuerst zum zur zwar zwischen",
}


def _words(*lists: str) -> frozenset[str]:
    return frozenset(word for words in lists for word in words.split())


_TITLES_OF: Mapping[str, frozenset[str]] = {language: _words(words) for language, words in _TITLES.items()}
"""Abbreviations that names follow, without full stop, in small letters."""
_ABBREVIATIONS_OF: Mapping[str, frozenset[str]] = {
    language: _words(_ANY, words, _TITLES.get(language, "")) for language, words in _BEFORE_NUMBERS.items()
}
"""Abbreviations that small letters, numbers or brackets follow."""
_OF_ANY_LANGUAGE = _words(_ANY)
_STARTERS_OF: Mapping[str, frozenset[str]] = {language: _words(words) for language, words in _STARTERS.items()}
"""Words that often begin a sentence, of languages with full stops after ordinals."""


REACH = 64
"""Characters on each side of a boundary that the rules look at."""

_LAST_WORD = re.compile(r"(?:^|[\s(\[{«„“\"'])([^\s(\[{«„“\"']+?)\.\s*$")
_FIRST_WORD = re.compile(r"\w+")
_FIRST_LETTER = re.compile(r"[^\W\d_]")
_VOWEL = re.compile("[aeiouyäöüàâéèêëîïôùûáíóúãõåæøœаеёиоуыэюяіїєаα-ω]", re.IGNORECASE)
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
    starters = _STARTERS_OF.get(language, ())
    ordinal = bool(starters) and _NUMBER.fullmatch(word) is not None and next_word != ""
    return not ordinal or next_word.lower() in starters


def _is_name_part(word: str, language: str, *, alone: bool) -> bool:
    """True for titles and initials, if a name follows them."""
    initials = word.isupper() and (alone or _INITIALS.fullmatch(word) is not None) and word.lower() != _ERA
    return initials or word.lower().rpartition(".-")[2] in _TITLES_OF.get(language, ())  # Dipl.-Ing., but not next-gen


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
    if word.lower() in _ABBREVIATIONS_OF.get(language, _OF_ANY_LANGUAGE) or "." in word:
        return True
    return word.isalpha() and len(word) <= 4 and not _VOWEL.search(word)


logger = logging.getLogger(__name__)

MAX_PIECE = 2048
"""Most characters that the library sees at once. Its time grows with their square, and it holds Python's lock."""
MAX_STOPS = 64
"""Most runs of punctuation in them; in Catalan and Danish each takes the library 0.2 ms."""
MIN_PIECE = 512
"""With more stops in fewer characters, a text is split by punctuation alone: no language is written like this."""
LOOKAHEAD = ADVANCE = 4
"""Shares of a piece, as divisors: its end only shows how the sentences before go on, and the next piece begins after
its first part at the earliest."""

_SENTENCEX = ForeignCode("sentencex")
_WIDE_SPACE_BEFORE_STOP = re.compile(r"[^\S\x00-\x7f](?=\.)")
"""White space that the library fails on after a capital letter, as it takes all white space for one byte."""
_WIDE_TERMINATORS = "\u3002\uff01\uff1f\uff61\uff0e"
_TERMINATORS = (
    "!?\u0589\u061d\u061e\u061f\u06d4\u0700\u0701\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u104a\u104b"
    "\u1362\u1367\u1368\u166e\u1735\u1736\u1803\u1809\u1944\u1945\u1aa8\u1aa9\u1aaa\u1aab\u1b5a\u1b5b\u1b5e\u1b5f"
    "\u1b7d\u1b7e\u1c3b\u1c3c\u1c7e\u1c7f\u2024\u203c\u203d\u2047\u2048\u2049\u2e2e\u2e3c\u2e53\u2e54\ua4ff\ua60e"
    "\ua60f\ua6f3\ua6f7\ua876\ua877\ua8ce\ua8cf\ua92f\ua9c8\ua9c9\uaa5d\uaa5e\uaa5f\uaaf0\uaaf1\uabeb\ufe52\ufe56"
    "\ufe57\U00010a56\U00010a57\U00010f55\U00010f56\U00010f57\U00010f58\U00010f59\U00010f86\U00010f87\U00010f88"
    "\U00010f89\U00011047\U00011048\U000110be\U000110bf\U000110c0\U000110c1\U00011141\U00011142\U00011143"
    "\U000111c5\U000111c6\U000111cd\U000111de\U000111df\U00011238\U00011239\U0001123b\U0001123c\U000112a9"
    "\U0001144b\U0001144c\U000115c2\U000115c3\U000115c9\U000115ca\U000115cb\U000115cc\U000115cd\U000115ce"
    "\U000115cf\U000115d0\U000115d1\U000115d2\U000115d3\U000115d4\U000115d5\U000115d6\U000115d7\U00011641"
    "\U00011642\U0001173c\U0001173d\U0001173e\U00011944\U00011946\U00011a42\U00011a43\U00011a9b\U00011a9c"
    "\U00011c41\U00011c42\U00011ef7\U00011ef8\U00011f43\U00011f44\U00016a6e\U00016a6f\U00016af5\U00016b37"
    "\U00016b38\U00016b44\U00016e98\U0001bc9f\U0001da88\u2026"
)
"""Characters with the Unicode property Sentence_Terminal, as the library knows them, and the ellipsis."""
_ALL_TERMINATORS = "." + _WIDE_TERMINATORS + _TERMINATORS
_MARKED = {**dict.fromkeys(map(ord, _TERMINATORS), "."), **dict.fromkeys(map(ord, _WIDE_TERMINATORS), "\u3002")}
_COUNTED = str.maketrans({**dict.fromkeys(_ALL_TERMINATORS, "\u3002"), **dict.fromkeys(".!?", "."), "\u2026": "\u2026"})
_STOP = re.compile("[.][. \t]*|\u2026+|\u3002")
"""A run of punctuation, as the library takes it at once; other full stops than these are runs of one."""
_PLAIN_END = re.compile("(?<![.\u3002])[.\u3002]+[\"'\u201d\u2019\u00bb)\\]]*(?:\\s+(?![\\da-z])|(?<=\u3002))")
_LAST_SPACE = re.compile(r"(?s).*\s")
_ASTRAL_TERMINATORS = [one for one in _ALL_TERMINATORS if one > "\uffff"]
_MAYBE_STOP = re.compile(
    f"[{re.escape(''.join(set(_ALL_TERMINATORS).difference(_ASTRAL_TERMINATORS)))}"
    f"{min(_ASTRAL_TERMINATORS)}-{max(_ASTRAL_TERMINATORS)}]"
)
"""All terminators, and some letters: one range for those that are rare makes the search 15 times as fast."""
_INNER_STOP = re.compile(rf"[{re.escape(_ALL_TERMINATORS)}]\s*+[^\s.{re.escape(_TERMINATORS)}]")
"""End of a sentence with another after it, possibly."""


def sentence_spans(text: str, language: str, *, deadline: float | None = None) -> Iterator[tuple[int, int]]:
    """Yield first and end index of each sentence, without the white space around it.

    A line break always ends a sentence; a full stop after an abbreviation or an ordinal does not, although the library
    may say so. Markers of a list inside of a line are sentences of their own. A line of at most `MAX_PIECE` characters
    and `MAX_STOPS` stops is split as a whole; in a longer one, quotation marks and brackets over more than a quarter of
    a piece may be missed. The time is proportional to the text's length.

    Args:
        language: ISO 639 code of one language, without script or region.
        deadline: moment of ``time.monotonic()``; None: no limit.

    Raises:
        DeadlineExceededError: the deadline has passed.
    """
    first = 0
    for line in text.splitlines(keepends=True):
        begin = 0
        for end, sure in () if line.isspace() else _with_items(line, _ends(line, language, deadline)):
            if not sure and end < len(line) and not ends_sentence(line, begin, end, language):
                continue
            part = line[begin:end]
            if sentence := part.strip():
                start = first + begin + len(part) - len(part.lstrip())
                yield start, start + len(sentence)
            begin = end
        first += len(line)


def _with_items(line: str, ends: Iterator[int]) -> Iterator[tuple[int, bool]]:
    """Yield ends of a line in order, with True for those around markers of lists, which the library may miss."""
    items = list_items(line)
    item = next(items, None)
    last = 0
    for end in ends:
        while item is not None and item[0] < end:
            if item[0] > last:
                yield item[0], True
            last = item[1]
            yield last, True
            item = next(items, None)
        if end > last:
            yield end, False


def possible_ends(text: str) -> int:
    """Count the places where a sentence may end inside of a text, up to 16."""
    return sum(1 for _ in islice(_inner_stops(text), 16)) + len(text.split("\n", 16)) - 1


def _inner_stops(text: str) -> Iterator[re.Match[str]]:
    """Yield the matches of `_INNER_STOP`."""
    begin = 0
    while maybe := _MAYBE_STOP.search(text, begin):
        begin = maybe.end()
        if found := _INNER_STOP.match(text, maybe.start()):
            yield found
            begin = found.end()


def _ends(line: str, language: str, deadline: float | None) -> Iterator[int]:
    """Yield the end of each sentence of a line."""
    if next(_inner_stops(line), None) is None:
        yield len(line)
        return
    begin = 0
    while begin < len(line):
        check(deadline, "a text was split into sentences")
        piece = _piece(line, begin)
        length = len(piece)
        last = begin + length == len(line)
        ends = _split(piece, language) if last or length >= MIN_PIECE else _split_plainly(piece)
        if not last:
            first, usable = length // ADVANCE, length - length // LOOKAHEAD
            ends = [end for end in ends if end <= usable]
            # A sentence that is longer goes on in the next piece.
            length = ends[-1] if ends and ends[-1] >= first else _last_space(piece, first, usable)
        yield from (begin + end for end in ends)
        begin += length


def _piece(line: str, begin: int) -> str:
    """Return the next piece of a line; in a long one with an even number of quotation marks if possible.

    With an odd number the library takes pairs of them for marks that do not belong together.
    """
    piece = line[begin : begin + MAX_PIECE]
    stop = next(islice(_STOP.finditer(piece.translate(_COUNTED)), MAX_STOPS, None), None)
    if stop is not None:
        piece = piece[: max(1, stop.start())]
    if begin + len(piece) < len(line) and piece.count('"') % 2:
        last = piece.rindex('"')
        return piece[:last] if last >= len(piece) - len(piece) // LOOKAHEAD else piece
    return piece


def _last_space(piece: str, first: int, end: int) -> int:
    """Return the index after the last white space of ``piece[first:end]``, or ``end`` without any."""
    found = _LAST_SPACE.match(piece, first, end)
    return found.end() if found else end


def _split(piece: str, language: str) -> list[int]:
    """Return the end of each sentence of a piece; by punctuation alone if the library fails."""
    from sentencex import segment  # noqa: PLC0415 - loaded only to split

    try:
        with _SENTENCEX:
            parts = segment(language, _WIDE_SPACE_BEFORE_STOP.sub(" ", piece))
    except ForeignCodeError as error:
        logger.warning("%s; the text is split at its punctuation instead", error)
        return _split_plainly(piece)
    ends = list(accumulate(map(len, parts)))
    return ends if ends and ends[-1] == len(piece) else _split_plainly(piece)  # which loses no character


def _split_plainly(piece: str) -> list[int]:
    """Return the end of each sentence of a piece by its punctuation alone."""
    return [*(found.end() for found in _PLAIN_END.finditer(piece.translate(_MARKED))), len(piece)]


MAX_SENTENCES = 4096
"""Limit for all texts of a request together."""


@dataclass(frozen=True, slots=True)
class SplitText:
    """A text's sentences, and the text before, between and after them that is not translated.

    Attributes:
        sentences: sentences, [n]; a text without any has an empty one.
        kept: white space and markers of lists, [n + 1].
    """

    sentences: tuple[str, ...]
    kept: tuple[str, ...]

    def for_target(self, language: str) -> "SplitText":
        """Replace a single or no space between sentences by the target language's."""
        space = sentence_space(language)
        first, *between, last = self.kept
        return SplitText(self.sentences, (first, *(space if kept in {"", " "} else kept for kept in between), last))


def sentence_space(language: str) -> str:
    """Return the white space that a language, given by its tag, writes between sentences."""
    return " " if writes_spaces(language) else ""


def too_many_sentences() -> InvalidArgumentError:
    """Make the error of texts with too many sentences."""
    return InvalidArgumentError(
        f"a request takes at most {MAX_SENTENCES} sentences, all texts together: send several", field="contents"
    )


def split(text: str, language: str, *, max_sentences: int = MAX_SENTENCES, deadline: float | None = None) -> SplitText:
    """Split a text into sentences by sentencex and at line breaks.

    Sentences and kept text joined in turn are the text.

    Raises:
        InvalidArgumentError: the text has more than ``max_sentences`` sentences.
        DeadlineExceededError: the deadline, in `time.monotonic()` seconds, has passed.
    """
    sentences: list[str] = []
    kept: list[str] = []
    end = 0
    for start, after in sentence_spans(text, primary_language(language), deadline=deadline):
        first = start + marker_length(text[start:after])
        if first == after:
            continue
        if len(sentences) >= max_sentences:
            raise too_many_sentences()
        kept.append(text[end:first])
        sentences.append(text[first:after])
        end = after
    if not sentences:
        return SplitText(("",), (text, ""))
    return SplitText(tuple(sentences), (*kept, text[end:]))


_PLACES = (
    re.compile(r"[;:\u2014\u2013]\s+|[\uff1b\uff1a\u061b\u037e]\s*"),  # clauses
    re.compile(r"[,\u060c]\s+|[\uff0c\u3001]\s*"),  # commas
    re.compile(r"\s+"),
)
"""Places to cut after, best first."""


def cut(sentence: str, fits: Callable[[str], bool], whole: Sequence[tuple[int, int]] = ()) -> list[str]:
    """Cut a sentence into parts that fit, each cut near the middle of a part.

    Args:
        fits: True for texts that are short enough.
        whole: places of parts that are not divided.

    Returns:
        Parts that are the sentence when concatenated, n >= 1, with white space at their ends; a part of one character
        may be one that does not fit.
    """
    inside = {index for first, after in whole for index in range(first + 1, after)}
    parts: list[str] = []
    waiting = [(0, sentence)]
    while waiting:
        first, part = waiting.pop()
        middle = 0 if fits(part) else _middle(part, first, inside)
        if middle:
            waiting += ((first + middle, part[middle:]), (first, part[:middle]))
        else:
            parts.append(part)
    return parts


def _middle(part: str, begin: int, inside: Set[int]) -> int:
    """Return the index of the best place to cut a part; 0: none.

    Args:
        begin: index of the part in its sentence.
        inside: indices of the sentence where none is cut.
    """
    length = len(part)
    for place in _PLACES:
        for share in (4, 10):  # first in the half around the middle
            first, last = length // share, length - length // share
            ends = [found.end() for found in place.finditer(part, first, last) if 0 < found.end() < length]
            ends = [end for end in ends if begin + end not in inside]
            if ends:
                return min(ends, key=lambda end: abs(2 * end - length))
    whole = (index for index in range(1, length) if not unicodedata.combining(part[index]))
    return min(
        (index for index in whole if begin + index not in inside), key=lambda index: abs(2 * index - length), default=0
    )


def joint(before: str, after: str, *, source_spaces: bool, space: str) -> str:
    """Return the text between the translations of two parts.

    Args:
        source_spaces: True if the source language writes spaces; without one, the cut is inside of a word.
        space: space between two sentences of the target language.
    """
    white = before[len(before.rstrip()) :]
    if white not in {"", " "}:
        return white
    inside = source_spaces and not white and before[-1:].isalnum() and after[:1].isalnum()
    return "" if inside else space
